"""Low-rank additions in Triton. Same meaning as `reference.py`.

Two launches: rows become narrow (x through `down`), then wide again, onto the product. The first may come before the
product, which hides it. A tile of rows goes through the matrices of each adapter that one of its rows has, one after
the other or, where rows are few, in programs of their own: *turns*.

Sums over inputs are cut into slices, each summed by itself and then added in order: where rows are many, by the program
that has them all, otherwise by those that need the sum. So a row's bits depend neither on the other rows nor on their
number.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.low_rank.matrices import LowRankMatrices
from facet.kernels.low_rank.triton_kernels import (
    narrow_few_rows_kernel,
    narrow_rows_kernel,
    widen_rows_kernel,
    widen_to_geglu_kernel,
)

LEAST_SLICE, MOST_SLICES = 256, 24
MOST_PARTS = 3
# Bytes of `down` that a program has at once, and values of `up`.
_DOWN_BYTES = 16384
_MOST_VALUES = 128 * 128
# So many programs share the slices of few rows.
_MANY_PROGRAMS = 512
# So many rows wait for loads alone; so many have turns; and more than so many have all slices in one program.
_FEWEST_ROWS, _FEW_ROWS, _MOST_SHARED_ROWS = 64, 128, 1024
# Programs that are on a card at the same time, and the most tiles of outputs that one takes where there are more.
_RESIDENT, _MOST_TILES = 900, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowRows:
    """Rows through `down`, on their way to `first` and the outputs that follow it."""

    sums: Tensor  # [slices, parts, rows, rank], or of all slices together: [1, ...]
    numbers: Tensor
    matrices: LowRankMatrices
    parts: list[tuple[int, int, int]]
    first: int
    num_turns: int
    block_rows: int

    def geglu_of(self, product: Tensor, geglu: Callable[[Tensor], Tensor]) -> Tensor:
        """Where rows are many, sums stay where they are made."""
        num_sums, _, num_rows, rank = self.sums.shape
        up = self.matrices.up
        width = product.shape[1] // 2
        are_halves = [(start, end) for _, start, end in self.parts] == [(0, width), (width, 2 * width)]
        if num_sums > 1 or num_rows <= _MOST_SHARED_ROWS or not are_halves:
            self.add_to(product)
            return geglu(product)
        opened = torch.empty(num_rows, width, dtype=product.dtype, device=product.device)
        block_out = max(16, min(128, _MOST_VALUES // (4 * rank)))
        num_row_programs, num_out_tiles = triton.cdiv(num_rows, self.block_rows), triton.cdiv(width, block_out)
        share = _tiles_per_program(num_row_programs * num_out_tiles)
        widen_to_geglu_kernel[(num_row_programs, triton.cdiv(num_out_tiles, share))](
            product,
            opened,
            self.sums,
            up,
            self.numbers,
            num_rows,
            width,
            share,
            product.stride(0),
            RANK=rank,
            BLOCK_ROWS=self.block_rows,
            BLOCK_OUT=block_out,
            PRECISION=_precision(product),
            num_warps=4,
            **launch_options(product.device),
        )
        return opened

    def add_to(self, product: Tensor) -> None:
        num_sums, num_parts, num_rows, rank = self.sums.shape
        if num_rows == 0:
            return
        assert product.stride(1) == 1, "rows lie in one piece"
        up = self.matrices.up
        block_out = min(128, _MOST_VALUES // rank)
        edges = [edge for _, start, end in self.parts for edge in (start, end)] + [0, 0] * (MOST_PARTS - num_parts)
        num_row_programs = triton.cdiv(num_rows, self.block_rows) * self.num_turns
        num_out_tiles = sum(triton.cdiv(end - start, block_out) for _, start, end in self.parts)
        share = _tiles_per_program(num_row_programs * num_out_tiles)
        num_out_programs = sum(triton.cdiv(end - start, block_out * share) for _, start, end in self.parts)
        widen_rows_kernel[(num_row_programs, num_out_programs)](
            product,
            self.sums,
            up,
            self.numbers,
            num_rows,
            up.shape[1],
            num_sums,
            num_parts,
            self.first,
            self.num_turns,
            share,
            product.stride(0),
            *edges,
            RANK=rank,
            BLOCK_ROWS=self.block_rows,
            BLOCK_OUT=block_out,
            AT_ONCE=max(1, 512 // rank),
            PRECISION=_precision(product),
            num_warps=4,
            **launch_options(product.device),
        )


def narrow_rows(x: Tensor, numbers: Tensor, matrices: LowRankMatrices, *, first: int, end: int) -> NarrowRows:
    """`first` and `end`: of the outputs that they are for."""
    num_rows, num_inputs = x.shape
    assert x.stride(1) == 1, "rows lie in one piece"
    down, rank = matrices.down, matrices.rank
    parts = matrices.parts_within(first, end)
    assert 1 <= len(parts) <= MOST_PARTS, "a product has few parts"
    slice_size = LEAST_SLICE
    while num_inputs > slice_size * MOST_SLICES:
        slice_size *= 2
    is_shared = num_rows <= _MOST_SHARED_ROWS
    block_rows = 16 if is_shared or rank > 128 else 32
    num_tiles, num_slices = triton.cdiv(num_rows, block_rows), triton.cdiv(num_inputs, slice_size)
    num_turns = min(len(down), block_rows, num_rows) if num_rows <= _FEW_ROWS else 1
    num_sums = num_slices if is_shared else 1
    sums = torch.empty(num_sums, len(parts), num_rows, rank, dtype=torch.float32, device=x.device)
    given = (x, down, numbers, sums, num_rows, num_inputs, x.stride(0), down.shape[1], parts[0][0], len(parts))
    most_inputs = 256 if num_rows <= _FEWEST_ROWS else 128
    constants = {
        "RANK": rank,
        "BLOCK_ROWS": block_rows,
        "BLOCK_IN": max(16, min(most_inputs, _DOWN_BYTES // (rank * x.element_size()))),
        "SLICE": slice_size,
        "PRECISION": _precision(x),
        "num_warps": 4,
        **launch_options(x.device),
    }
    if num_rows == 0:
        pass
    elif is_shared:
        num_programs = min(num_slices, max(1, _MANY_PROGRAMS // (num_tiles * len(parts))))
        share = triton.cdiv(num_slices, num_programs)
        grid = (num_tiles * num_turns, triton.cdiv(num_slices, share), len(parts))
        narrow_few_rows_kernel[grid](*given, share, num_turns, **constants)
    else:
        narrow_rows_kernel[(num_tiles, len(parts))](*given, **constants)
    return NarrowRows(
        sums=sums,
        numbers=numbers,
        matrices=matrices,
        parts=parts,
        first=first,
        num_turns=num_turns,
        block_rows=block_rows,
    )


def _tiles_per_program(num_tiles: int) -> int:
    """Of outputs, of so many of which there are in all."""
    return max(1, min(_MOST_TILES, num_tiles // _RESIDENT))


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"
