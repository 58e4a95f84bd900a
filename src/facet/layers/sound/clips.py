"""Clips of different length as one batch: zeros behind each, and the convolutions that shorten them."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from facet.transfer import indices_on_device


def encode_by_length(
    clips: Sequence[Mapping[str, Tensor]], encode: Callable[[Sequence[Tensor]], Sequence[Tensor]]
) -> list[Tensor]:
    """The rows that `encode` makes of each clip's features. It gets clips together of which none is more than twice as
    long as another, so that no more than half of what it computes is padding."""
    features = [clip["features"] for clip in clips]
    rows: list[Tensor] = [clip.new_empty(0) for clip in features]
    order = sorted(range(len(features)), key=lambda index: len(features[index]))
    while order:
        longest = len(features[order[-1]])
        first = next(place for place, index in enumerate(order) if 2 * len(features[index]) >= longest)
        together, order = order[first:], order[:first]
        for index, found in zip(together, encode([features[index] for index in together]), strict=True):
            rows[index] = found
    return rows


def stack_clips(clips: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[clips, frames of the longest, width], and the length of each."""
    lengths = indices_on_device([len(clip) for clip in clips], clips[0].device)
    return pad_sequence([clip.to(dtype) for clip in clips], batch_first=True), lengths


def halve_frames(x: Tensor, lengths: Tensor, weight: Tensor, *, frames_before: int) -> tuple[Tensor, Tensor]:
    """A convolution over [clips, channels, frames, bins] that takes two steps at a time, along frames and bins.

    Its kernel covers three frames; the first one begins `frames_before` frames before a clip. What lies around a clip
    is zero, whatever clips it is stacked with.
    """
    outside = torch.arange(x.shape[2], device=x.device) >= lengths[:, None]
    inside = x.masked_fill(outside[:, None, :, None], 0)
    padded = functional.pad(inside, (1, 1, frames_before, 2 - frames_before))
    return functional.conv2d(padded, weight, stride=2), (lengths + 1) // 2


def num_quarters(num_frames: int) -> int:
    """Frames that are left of a clip that was halved twice."""
    return -(-num_frames // 4)


def as_frames(x: Tensor) -> Tensor:
    """[clips, channels, frames, bins] to [clips * frames, bins * channels]."""
    return x.permute(0, 2, 3, 1).flatten(0, 1).flatten(1)
