"""Layers, inputs and tolerances for checking the step from projection to attention.

Pages lie between those of other layers and hold NaN, so that a write to the wrong place shows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.head_inputs.reference import Arguments
from facet.kernels.paged_attention.cache import HeadShape, LayerCache
from facet.kernels.rotary import rotary_table
from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=4e-6, relative=4e-6, why="a float32 mean over a head, then five products and a sum")
HALF = Tolerance(
    absolute=2e-2,
    relative=2**-7,
    why="the same roundings in the same places, but the mean is summed in another order: where that tips a rounding of "
    "the norm, one step of a value as large as 5 passes through the rotation",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    projected: Tensor
    arguments: Arguments
    pages: Tensor  # all memory that `cache` is a view of


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    num_rows: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_pairs: int
    num_projected: int  # 1: queries; 2: and keys; 3: and values
    num_stored: int  # vectors per token and head
    values_are_normed: bool = True
    tokens_per_block: int = 5

    @property
    def heads(self) -> HeadShape:
        return HeadShape(num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return FLOAT32 if dtype == torch.float32 else HALF

    def inputs(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        width = (self.num_heads + (self.num_projected - 1) * self.num_kv_heads) * self.head_dim
        # Rows are part of something wider, as a slice of a packed product would be.
        packed = 3 * torch.randn(self.num_rows, width + 16, generator=generator, device=device)
        size = self.tokens_per_block
        num_pages = 2 + -(-self.num_rows // size)
        pages = torch.full(
            (num_pages, 2 * size + 3, self.num_kv_heads, self.head_dim), float("nan"), dtype=dtype, device=device
        )
        keys, values = pages[:, 1 : 1 + size], pages[:, size + 2 : 2 * size + 2]
        places = torch.randperm(num_pages * size, generator=generator, device=device)[: self.num_rows]
        positions = torch.randint(0, 1000, (self.num_rows,), generator=generator, device=device)
        angles = rotary_table(
            1000,
            head_dim=self.head_dim,
            num_pairs=self.num_pairs,
            theta=1e4,
            factor=1.0,
            dtype=dtype,
            device=device,
        )
        query_weight, key_weight = torch.rand(2, self.head_dim, generator=generator, device=device) + 0.5
        cache = LayerCache(keys=keys, values=values if self.num_stored == 2 else None)
        return Inputs(
            projected=packed.to(dtype)[:, :width],
            arguments=Arguments(
                query_weight=query_weight,
                key_weight=key_weight if self.num_stored else None,
                eps=1e-6,
                cos_sin=angles[positions],
                cache=cache if self.num_stored else None,
                write_blocks=places // size,
                write_slots=places % size,
                values_are_normed=self.values_are_normed,
            ),
            pages=pages,
        )


CASES = (
    Case(
        name="E4B sliding, one row",
        num_rows=1,
        num_heads=8,
        num_kv_heads=2,
        head_dim=256,
        num_pairs=128,
        num_projected=3,
        num_stored=2,
    ),
    Case(
        name="E4B global, 300 rows",
        num_rows=300,
        num_heads=8,
        num_kv_heads=2,
        head_dim=512,
        num_pairs=64,
        num_projected=3,
        num_stored=2,
    ),
    Case(
        name="E4B upper half, queries alone",
        num_rows=7,
        num_heads=8,
        num_kv_heads=2,
        head_dim=256,
        num_pairs=128,
        num_projected=1,
        num_stored=0,
    ),
    Case(
        name="31B global, shared",
        num_rows=131,
        num_heads=32,
        num_kv_heads=4,
        head_dim=512,
        num_pairs=64,
        num_projected=2,
        num_stored=1,
    ),
    Case(
        name="Gemma 3, values as they are projected",
        num_rows=77,
        num_heads=32,
        num_kv_heads=16,
        head_dim=128,
        num_pairs=64,
        num_projected=3,
        num_stored=2,
        values_are_normed=False,
    ),
)
