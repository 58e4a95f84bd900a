"""Computes log-mel features of sound: how loud each band of frequencies is, a hundred times a second."""

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from facet.media.spec import LogMel


def num_mel_frames(num_samples: int, mel: LogMel) -> int:
    """The number of mel frames of a clip. A frame needs one sample more than it has: the reference looks ahead."""
    padded = mel.left_padding + num_samples + -num_samples % mel.right_multiple
    return max(0, (padded - mel.frame_length - 1) // mel.hop_length + 1)


def log_mel(samples: NDArray[np.float32], mel: LogMel, sampling_rate: int) -> NDArray[np.float32]:
    """[frames, bins] of one clip. Types in between are those of the reference: quiet bins show the difference."""
    frames = _frames(samples, mel)
    if mel.preemphasis:
        frames = np.concatenate(
            (
                frames[:, :1] * np.float32(1 - mel.preemphasis),
                frames[:, 1:] - np.float32(mel.preemphasis) * frames[:, :-1],
            ),
            axis=1,
        )
    spectrum = np.fft.rfft(frames * _window(mel.frame_length, is_rounded=mel.rounds_window), n=mel.fft_length, axis=1)
    energy = np.abs(spectrum) @ _filters(mel, sampling_rate)
    return np.log(energy + mel.floor if mel.adds_floor else np.maximum(energy, mel.floor)).astype(np.float32)


def _frames(samples: NDArray[np.float32], mel: LogMel) -> NDArray[np.float32]:
    """Overlapping frames, [frames, frame_length]."""
    count = num_mel_frames(len(samples), mel)
    if not count:  # too few samples for a window, maybe
        return np.empty((0, mel.frame_length), np.float32)
    padded = np.pad(samples, (mel.left_padding, -len(samples) % mel.right_multiple))
    return sliding_window_view(padded, mel.frame_length)[: count * mel.hop_length : mel.hop_length]


@cache
def _window(length: int, *, is_rounded: bool) -> NDArray[np.float32]:
    """Hann's window, of a period of `length`."""
    places: NDArray[np.floating] = np.arange(length).astype(np.float32 if is_rounded else np.float64)
    window: NDArray[np.float32] = (0.5 * (1 - np.cos(2 * np.pi * places / length))).astype(np.float32)
    return window


@cache
def _filters(mel: LogMel, sampling_rate: int) -> NDArray[np.float64]:
    """[fft_length / 2 + 1, bins]: triangles over the frequencies, their corners evenly spaced on the mel scale."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (mel.min_frequency, mel.max_frequency))
    corners = 700 * (10 ** (np.linspace(low, high, mel.num_bins + 2) / 2595) - 1)
    frequencies = np.arange(mel.fft_length // 2 + 1)[:, None] * (sampling_rate / mel.fft_length)
    left, peak, right = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (frequencies - left) / (peak - left), (right - frequencies) / (right - peak)
    return np.maximum(0, np.minimum(rising, falling))
