"""Gemma 3's tower: a transformer (SigLIP) over square pictures of one size, whose rows are averaged and projected."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.layers.tower_products import BiasedLinear, LayerNorm
from facet.vision_spec import SquareTowerSpec


class SquareTower(nn.Module):
    """Takes `pixels` [3, size, size] of bytes."""

    def __init__(self, spec: SquareTowerSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.placement = placement
        self.input = BiasedLinear(3 * spec.patch_size**2, spec.hidden_size, placement)
        self.positions = placement.values(spec.patches_per_side**2, spec.hidden_size)
        self.layers = nn.ModuleList(SquareLayer(spec, placement) for _ in range(spec.num_layers))
        self.norm = LayerNorm(spec.hidden_size, spec.norm_eps, placement)
        self.output_norm = RMSNorm(spec.hidden_size, spec.norm_eps, placement)
        self.output = Linear(spec.hidden_size, spec.output_size, placement)

    def forward(self, pictures: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
        """The rows of each picture."""
        pixels = torch.stack([picture["pixels"] for picture in pictures])
        stream = self.input(self._patches(pixels)) + self.positions.repeat(len(pictures), 1)
        for layer in self.layers:
            stream = layer(stream)
        rows: Tensor = self.output(self.output_norm(self._averages(self.norm(stream))))
        return list(torch.split(rows, self.spec.rows_per_side**2))

    @property
    def padded_sizes(self) -> tuple[int, ...]:
        """The sizes of `forward_padded`: all pictures have one size."""
        return (1,)

    @property
    def num_padded_rows(self) -> int:
        return self.spec.rows_per_side**2

    def size_of(self, picture: Mapping[str, Tensor]) -> int:
        return 1

    def padded_inputs(self, size: int) -> dict[str, Tensor]:
        side = self.spec.image_size
        return {"pixels": torch.zeros(3, side, side, dtype=torch.uint8, device=self.placement.device)}

    def forward_padded(self, picture: Mapping[str, Tensor], count: Tensor) -> Tensor:
        """The rows of a picture, which needs no filling up."""
        return self.forward([picture])[0]

    def _patches(self, pixels: Tensor) -> Tensor:
        """[pictures * patches, 3 * size^2], each flattened by colour, row and column, from -1 to 1."""
        side, size = self.spec.patches_per_side, self.spec.patch_size
        scaled = (pixels.float() * (2 / 255) - 1).to(self.placement.dtype)
        grid = scaled.view(-1, 3, side, size, side, size).permute(0, 2, 4, 1, 3, 5)
        return grid.reshape(-1, 3 * size**2)

    def _averages(self, stream: Tensor) -> Tensor:
        side, count = self.spec.patches_per_side, self.spec.rows_per_side
        cells = stream.view(-1, count, side // count, count, side // count, self.spec.hidden_size)
        return cells.float().mean(dim=(2, 4)).to(stream.dtype).flatten(0, 2)


class SquareLayer(nn.Module):
    def __init__(self, spec: SquareTowerSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        hidden = spec.hidden_size
        self.attention_norm = LayerNorm(hidden, spec.norm_eps, placement)
        self.query, self.key, self.value = (BiasedLinear(hidden, hidden, placement) for _ in range(3))
        self.output = BiasedLinear(hidden, hidden, placement)
        self.mlp_norm = LayerNorm(hidden, spec.norm_eps, placement)
        self.widen = BiasedLinear(hidden, spec.mlp_width, placement)
        self.narrow = BiasedLinear(spec.mlp_width, hidden, placement)

    def forward(self, stream: Tensor) -> Tensor:
        """[pictures * patches, hidden]"""
        normed = self.attention_norm(stream)
        queries, keys, values = (self._heads(project(normed)) for project in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(queries, keys, values)
        stream = stream + self.output(attended.transpose(1, 2).flatten(2).flatten(0, 1))
        widened = functional.gelu(self.widen(self.mlp_norm(stream)), approximate="tanh")
        narrowed: Tensor = self.narrow(widened)
        return stream + narrowed

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(-1, self.spec.patches_per_side**2, self.spec.num_heads, self.spec.head_dim).transpose(1, 2)
