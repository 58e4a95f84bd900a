"""Gemma 4 12B's embedder: frames of samples are projected straight into rows of the decoder."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.sound_spec import SampleEmbedderSpec


class SampleEmbedder(nn.Module):
    """Takes `features` [frames, samples of a frame]."""

    def __init__(self, spec: SampleEmbedderSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.placement = placement
        self.output = Linear(spec.frame_size, spec.output_size, placement)

    def forward(self, clips: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
        """The rows of each clip."""
        frames = torch.cat([clip["features"] for clip in clips]).to(self.placement.dtype)
        rows: Tensor = self.output(self.placement.arithmetic.rms_norm(frames, None, self.spec.norm_eps))
        return list(torch.split(rows, [len(clip["features"]) for clip in clips]))
