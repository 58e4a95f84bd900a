"""Gemma 4 12B's embedder: large patches of a picture are projected straight into rows of the decoder."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.tower_products import BiasedLinear, LayerNorm
from facet.vision_spec import PatchEmbedderSpec

_LAYER_NORM_EPS = 1e-5  # no config says it


class PatchEmbedder(nn.Module):
    """Takes `patches` [num_patches, 3 * size^2] of bytes, each flattened by row, column and colour, and `positions`
    [num_patches, 2], the column and row of each."""

    def __init__(self, spec: PatchEmbedderSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.placement = placement
        self.pixel_norm = LayerNorm(spec.patch_width, _LAYER_NORM_EPS, placement)
        self.input = BiasedLinear(spec.patch_width, spec.hidden_size, placement)
        self.patch_norm = LayerNorm(spec.hidden_size, _LAYER_NORM_EPS, placement)
        self.positions = placement.values(spec.num_positions, 2, spec.hidden_size)
        self.place_norm = LayerNorm(spec.hidden_size, _LAYER_NORM_EPS, placement)
        self.output = Linear(spec.hidden_size, spec.output_size, placement)

    def forward(self, pictures: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
        """The rows of each picture."""
        places = torch.cat([picture["positions"] for picture in pictures]).long()
        pixels = (torch.cat([picture["patches"] for picture in pictures]).float() / 255).to(self.placement.dtype)
        stream: Tensor = self.patch_norm(self.input(self.pixel_norm(pixels)))
        stream = self.place_norm(stream + (self.positions[places[:, 0], 0] + self.positions[places[:, 1], 1]))
        rows: Tensor = self.output(self.placement.arithmetic.rms_norm(stream, None, self.spec.norm_eps))
        return list(torch.split(rows, [len(picture["patches"]) for picture in pictures]))
