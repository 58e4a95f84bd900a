"""Changes the sampling rate of sound, in numpy.

The filter is the one FFmpeg takes by default, and so are the ends, where the sound is mirrored: a clip has the same
samples whether FFmpeg has resampled it or this module, except for the last bits.
"""

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

_ZERO_CROSSINGS = 32  # of the sinc, both sides together
_CUTOFF = 0.97  # of the lower of the two bandwidths
_KAISER_BETA = 9.0


def resample(samples: NDArray[np.float32], rate: int, new_rate: int) -> NDArray[np.float32]:
    """One channel of sound at `new_rate`."""
    divisor = math.gcd(rate, new_rate)
    up, down = new_rate // divisor, rate // divisor  # a new sample lies `down` / `up` old ones behind the one before
    if up == down or not len(samples):
        return samples
    filters = _filters(up, min(1.0, up * _CUTOFF / down))
    num_taps = filters.shape[1]
    center = (num_taps - 1) // 2
    mirrored = np.pad(np.pad(samples, (center, 0), mode="reflect"), (0, num_taps), mode="symmetric")
    windows = sliding_window_view(mirrored, num_taps)
    result = np.empty(-(-len(samples) * up // down), dtype=np.float32)
    # Every `up`-th new sample lies in the same way between old ones, and takes the same filter.
    for start in range(min(up, len(result))):
        first, phase = divmod(start * down, up)
        part = result[start::up]
        np.matmul(windows[first::down][: len(part)], filters[phase], out=part)
    return result


def _filters(num_phases: int, bandwidth: float) -> NDArray[np.float32]:
    """[phases, taps]: a sinc under Kaiser's window, for new samples phase / num_phases behind an old one."""
    num_taps = math.ceil(_ZERO_CROSSINGS / bandwidth / 2) * 2
    distances = np.arange(num_taps) - (num_taps - 1) // 2 - np.arange(num_phases)[:, None] / num_phases
    window = np.i0(_KAISER_BETA * np.sqrt(np.maximum(0, 1 - (2 * distances / num_taps) ** 2)))
    values = np.sinc(distances * bandwidth) * window
    filters: NDArray[np.float32] = (values / values[0].sum()).astype(np.float32)
    return filters
