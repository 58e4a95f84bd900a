"""Cuts sound that is longer than a model hears at once into clips, in pauses where there are any."""

from collections.abc import Iterator

import numpy as np

from facet.media.sound_waveform import Waveform

_SEARCHED_SECONDS = 5.0  # the last of a clip, where it may end; at least as much is left for the next one
_PAUSE_SECONDS = 0.2
_HOP_SECONDS = 0.02


def cut(waveform: Waveform, max_seconds: float) -> Iterator[tuple[Waveform, float]]:
    """Clips of at most `max_seconds`, which together are the whole, and where each ends, in seconds."""
    rate, samples = waveform.rate, waveform.samples
    longest, searched = int(max_seconds * rate), int(min(_SEARCHED_SECONDS, max_seconds / 4) * rate)
    start = 0
    while len(samples) - start > longest:
        latest = start + min(longest, len(samples) - start - searched)
        end = latest - searched + _quietest(waveform, latest - searched, latest)
        yield Waveform(rate, samples[start:end]), end / rate
        start = end
    yield Waveform(rate, samples[start:]), len(samples) / rate


def _quietest(waveform: Waveform, start: int, end: int) -> int:
    """The middle of the quietest pause between two samples, counted from the first; the middle one of equal ones."""
    hop = max(1, int(_HOP_SECONDS * waveform.rate))
    num_hops = (end - start) // hop
    if not num_hops:
        return end - start
    energy = np.square(waveform.samples[start : start + num_hops * hop], dtype=np.float64).reshape(-1, hop).sum(axis=1)
    length = min(num_hops, round(_PAUSE_SECONDS / _HOP_SECONDS))
    sums = np.convolve(energy, np.ones(length), mode="valid")
    quietest = np.flatnonzero(sums == sums.min())
    return int(quietest[len(quietest) // 2]) * hop + length * hop // 2
