"""Gemma 4's tower: convolutions shorten log-mel frames to a quarter, a conformer mixes them, and a product projects."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.sound.clips import as_frames, encode_by_length, halve_frames, num_rows, stack_clips
from facet.layers.sound.conformer import Conformer
from facet.layers.tower_products import BiasedLinear
from facet.sound_spec import ConformerTowerSpec

# Frames of clips that are filled up to: of 5, 10, 20 and 30 seconds, as much as the model hears.
PADDED_FRAMES = (500, 1000, 2000, 3000)


class ConformerTower(nn.Module):
    """Takes `features` [frames, bins]."""

    def __init__(self, spec: ConformerTowerSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.placement = placement
        first, second = spec.num_channels
        self.first = HalvingLayer(1, first, spec.norm_eps, placement)
        self.second = HalvingLayer(first, second, spec.norm_eps, placement)
        self.input = Linear(second * (spec.num_bins // 4), spec.conformer.hidden_size, placement)
        self.conformer = Conformer(spec.conformer, placement)
        self.projection = BiasedLinear(spec.conformer.hidden_size, spec.projected_size, placement)
        self.output = Linear(spec.projected_size, spec.output_size, placement)

    def forward(self, clips: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
        """The rows of each clip."""
        return encode_by_length(clips, self._encode)

    @property
    def padded_sizes(self) -> tuple[int, ...]:
        """Numbers of frames that `forward_padded` is made for."""
        return PADDED_FRAMES

    @property
    def num_padded_rows(self) -> int:
        return num_rows(PADDED_FRAMES[-1])

    def size_of(self, clip: Mapping[str, Tensor]) -> int:
        return len(clip["features"])

    def padded_inputs(self, size: int) -> dict[str, Tensor]:
        return {"features": torch.zeros(size, self.spec.num_bins, device=self.placement.device)}

    def forward_padded(self, clip: Mapping[str, Tensor], num_frames: Tensor) -> Tensor:
        """The rows of a clip that has `num_frames` frames, and behind them others that mean nothing."""
        return self._rows(clip["features"].to(self.placement.dtype).unsqueeze(0), num_frames.view(1))[0]

    def _encode(self, clips: Sequence[Tensor]) -> list[Tensor]:
        rows = self._rows(*stack_clips(clips, self.placement.dtype))
        return [made[: num_rows(len(clip))] for made, clip in zip(rows, clips, strict=True)]

    def _rows(self, features: Tensor, lengths: Tensor) -> Tensor:
        """[clips, rows, width] of [clips, frames, bins], of which so many are real."""
        x, lengths = self.first(features.unsqueeze(1), lengths)
        x, lengths = self.second(x, lengths)
        stream = self.projection(self.conformer(self.input(as_frames(x)), len(features)))
        normed = self.placement.arithmetic.rms_norm(stream, None, self.spec.norm_eps)
        rows: Tensor = self.output(normed)
        return rows.view(len(features), -1, self.spec.output_size)


class HalvingLayer(nn.Module):
    """A convolution that leaves half of the frames and bins, and a norm over the channels."""

    def __init__(self, num_inputs: int, num_outputs: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.kernel = placement.values(num_outputs, num_inputs, 3, 3)
        self.norm_weight = placement.norm_weight(num_outputs)
        self.eps = eps

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mixed, lengths = halve_frames(x, lengths, self.kernel, frames_before=1)
        # A norm of the type of its inputs is computed in float32 too, and holds half as much.
        weight = self.norm_weight.to(x.dtype)
        normed = functional.layer_norm(mixed.permute(0, 2, 3, 1), weight.shape, weight, None, self.eps)
        return functional.relu_(normed).permute(0, 3, 1, 2), lengths
