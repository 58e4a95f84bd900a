"""Gemma 4's tower: a transformer over the patches of pictures of any shape, and the projection of its rows.

Pictures of one call lie behind each other, without padding: products and norms take all their patches at once, and
attention takes each picture alone. A single picture may also be filled up to a size, for work that is captured once and
replayed (`runner/tower_graphs.py`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.layers.tower_products import BoundedLinear
from facet.vision_spec import PatchTowerSpec

# Attention of one picture's patches: queries, keys and values [num_patches, heads, head_dim] to such values.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

# Rows of pictures that are filled up to. They are budgets of Gemma 4's pictures, most of which come close to theirs;
# beyond the last of them a pass takes long enough to hide its launches.
PADDED_ROWS = (70, 140, 280)
# Attention is fast where the number of patches is a multiple of this.
_ALIGNMENT = 16


class PatchTower(nn.Module):
    """Takes `patches` [num_patches, 3 * size^2] of bytes, each flattened by row, column and colour, and `positions`
    [num_patches, 2], the column and row of each."""

    def __init__(self, spec: PatchTowerSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.placement = placement
        self.input = Linear(spec.patch_width, spec.hidden_size, placement)
        self.positions = placement.values(2, spec.num_positions, spec.hidden_size)
        self.layers = nn.ModuleList(PatchLayer(spec, placement) for _ in range(spec.num_layers))
        if spec.is_standardized:
            self.standard_bias = placement.values(spec.hidden_size)
            self.standard_scale = placement.values(spec.hidden_size)
        self.output = Linear(spec.hidden_size, spec.output_size, placement)

    def forward(self, pictures: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
        """The rows of each picture."""
        num_patches = [len(picture["patches"]) for picture in pictures]
        places = torch.cat([picture["positions"] for picture in pictures]).long()
        patches = torch.cat([picture["patches"] for picture in pictures])

        def attend(*all_heads: Tensor) -> Tensor:
            by_picture = zip(*(torch.split(each, num_patches) for each in all_heads), strict=True)
            return torch.cat([_attend(*picture) for picture in by_picture])

        stream = self._stream(patches, places, attend)
        averages = [
            self._averages(picture, where)
            for picture, where in zip(torch.split(stream, num_patches), torch.split(places, num_patches), strict=True)
        ]
        return list(torch.split(self._rows(torch.cat(averages)), [len(picture) for picture in averages]))

    @property
    def padded_sizes(self) -> tuple[int, ...]:
        """Numbers of patches that `forward_padded` is made for."""
        cell = self.spec.cell_size**2
        step = math.lcm(cell, _ALIGNMENT)
        return tuple(-(-count * cell // step) * step for count in PADDED_ROWS)

    @property
    def num_padded_rows(self) -> int:
        return self.padded_sizes[-1] // self.spec.cell_size**2

    def size_of(self, picture: Mapping[str, Tensor]) -> int:
        return len(picture["patches"])

    def padded_inputs(self, size: int) -> dict[str, Tensor]:
        device = self.placement.device
        return {
            "patches": torch.zeros(size, self.spec.patch_width, dtype=torch.uint8, device=device),
            "positions": torch.zeros(size, 2, dtype=torch.int32, device=device),
        }

    def forward_padded(self, picture: Mapping[str, Tensor], num_patches: Tensor) -> Tensor:
        """The rows of a picture that has `num_patches` patches, and behind them others that mean nothing."""
        patches, places = picture["patches"], picture["positions"].long()
        is_real = torch.arange(len(patches), device=patches.device) < num_patches
        stream = self._stream(patches, places, partial(_attend, mask=is_real[None, None, None]))
        return self._rows(self._averages(stream, places, is_real))

    def _stream(self, patches: Tensor, places: Tensor, attend: Attend) -> Tensor:
        """[num_patches, hidden], behind the last layer."""
        # In float32, so that a byte is rounded once, behind the scaling.
        pixels = patches.float() * (2 / 255) - 1
        stream: Tensor = self.input(pixels.to(self.placement.dtype))
        stream = stream + (self.positions[0, places[:, 0]] + self.positions[1, places[:, 1]])
        cos, sin = self._angles(places)
        for layer in self.layers:
            stream = layer(stream, attend, cos, sin)
        return stream

    def _rows(self, averages: Tensor) -> Tensor:
        # In float32 up to here: the factor leads out of the range of float16.
        pooled = averages * self.spec.hidden_size**0.5
        if self.spec.is_standardized:
            pooled = (pooled - self.standard_bias.float()) * self.standard_scale.float()
        normed = self.placement.arithmetic.rms_norm(pooled.to(self.placement.dtype), None, self.spec.norm_eps)
        rows: Tensor = self.output(normed)
        return rows

    def _angles(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [num_patches, 1, head_dim]: a head's first half turns by the column, its second by the row.

        Within a half, dimension j and the one a quarter of a head behind it are a pair."""
        quarter = self.spec.head_dim // 4
        exponents = torch.arange(quarter, dtype=torch.float32, device=places.device) / quarter
        turns = places.float()[:, :, None] * self.spec.rotary_theta**-exponents
        angles = torch.cat((turns, turns), dim=-1).flatten(1).unsqueeze(1)
        return angles.cos().to(self.placement.dtype), angles.sin().to(self.placement.dtype)

    def _averages(self, stream: Tensor, places: Tensor, is_real: Tensor | None = None) -> Tensor:
        """[num_cells, hidden] in float32: the mean of the patches of each cell, cells from left to right, then down.

        Patches that are not real make cells of their own, behind the others.
        """
        size = self.spec.cell_size
        cells, inside = places // size, places % size
        columns = cells[:, 0].max() + 1
        # Sorted by cell, the patches of a cell are neighbours, and are added in one order.
        order = (cells[:, 1] * columns + cells[:, 0]) * size**2 + inside[:, 1] * size + inside[:, 0]
        if is_real is not None:
            order = order.masked_fill(~is_real, torch.iinfo(order.dtype).max)
        by_cell = stream[order.argsort()].view(-1, size**2, self.spec.hidden_size).float().mean(dim=1)
        return by_cell.to(self.placement.dtype).float()


class PatchLayer(nn.Module):
    def __init__(self, spec: PatchTowerSpec, placement: Placement) -> None:
        super().__init__()
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.input_norm = RMSNorm(hidden, eps, placement)
        self.attention = PatchAttention(spec, placement)
        self.post_attention_norm = RMSNorm(hidden, eps, placement)
        self.pre_mlp_norm = RMSNorm(hidden, eps, placement)
        self.mlp = PatchMLP(spec, placement)
        self.post_mlp_norm = RMSNorm(hidden, eps, placement)

    def forward(self, stream: Tensor, attend: Attend, cos: Tensor, sin: Tensor) -> Tensor:
        attended = self.attention(self.input_norm(stream), attend, cos, sin)
        stream, normed = self.post_attention_norm.add(stream, attended, then=self.pre_mlp_norm)
        return self.post_mlp_norm.add(stream, self.mlp(normed)).stream


class PatchAttention(nn.Module):
    """Every patch sees every patch of its picture."""

    def __init__(self, spec: PatchTowerSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.arithmetic = placement.arithmetic
        width = spec.num_heads * spec.head_dim
        self.query, self.key, self.value = (
            BoundedLinear(spec.hidden_size, width, placement, is_clipped=spec.is_clipped) for _ in range(3)
        )
        self.query_norm = RMSNorm(spec.head_dim, spec.norm_eps, placement)
        self.key_norm = RMSNorm(spec.head_dim, spec.norm_eps, placement)
        self.output = BoundedLinear(width, spec.hidden_size, placement, is_clipped=spec.is_clipped)

    def forward(self, x: Tensor, attend: Attend, cos: Tensor, sin: Tensor) -> Tensor:
        queries = _rotate(self.query_norm(self._heads(self.query(x))), cos, sin)
        keys = _rotate(self.key_norm(self._heads(self.key(x))), cos, sin)
        values = self.arithmetic.rms_norm(self._heads(self.value(x)), None, self.spec.norm_eps)
        out: Tensor = self.output(attend(queries, keys, values).flatten(1))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(-1, self.spec.num_heads, self.spec.head_dim)


class PatchMLP(nn.Module):
    """down(gelu(gate(x)) * up(x))."""

    def __init__(self, spec: PatchTowerSpec, placement: Placement) -> None:
        super().__init__()
        hidden, width, is_clipped = spec.hidden_size, spec.mlp_width, spec.is_clipped
        self.gate = BoundedLinear(hidden, width, placement, is_clipped=is_clipped)
        self.up = BoundedLinear(hidden, width, placement, is_clipped=is_clipped)
        self.down = BoundedLinear(width, hidden, placement, is_clipped=is_clipped)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(functional.gelu(self.gate(x), approximate="tanh") * self.up(x))
        return out


def _attend(queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Attention without a scale. `mask`: which patches are seen."""
    queries, keys, values = (each.transpose(0, 1).unsqueeze(0) for each in (queries, keys, values))
    return functional.scaled_dot_product_attention(queries, keys, values, mask, scale=1.0)[0].transpose(0, 1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each half of a head by itself: (a, b) to (a cos - b sin, b cos + a sin)."""
    first, second, third, fourth = x.chunk(4, dim=-1)
    return x * cos + torch.cat((-second, first, -fourth, third), dim=-1) * sin
