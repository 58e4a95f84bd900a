"""Low-rank additions in Triton. Same meaning as `reference.py`.

Two launches: rows become narrow (x through `down`), then wide again, onto the product. The first may come before the
product, which hides it. A tile of rows goes through the matrices of each adapter that one of its rows has, one after
the other or, where rows are few, in programs of their own: *turns*.

Sums over inputs are cut into slices of `SLICE`, each summed by itself and then added in order: by a program that has
all of them, or, where several share them, by those that need the sum. So a row's bits depend neither on the other rows
nor on their number.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.low_rank.matrices import LowRankMatrices

SLICE = 256
BLOCK_ROWS = 16
MOST_PARTS = 3
NOBODY = tl.constexpr(2**31 - 1)  # behind the last number
# Bytes of `down` that a program has at once, and values of `up`.
_DOWN_BYTES = 16384
_MOST_VALUES = 128 * 128
# Programs that fill a card: so many have all slices each, and about so many are made of fewer tiles.
_ENOUGH_PROGRAMS, _MANY_PROGRAMS = 128, 512
# So many rows have turns.
_FEW_ROWS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowRows:
    """Rows through `down`, on their way to `first` and the outputs that follow it."""

    sums: Tensor  # [slices, parts, rows, rank], or of all slices together: [1, ...]
    numbers: Tensor
    matrices: LowRankMatrices
    parts: list[tuple[int, int, int]]
    first: int
    num_turns: int

    def add_to(self, product: Tensor) -> None:
        num_sums, num_parts, num_rows, rank = self.sums.shape
        if num_rows == 0:
            return
        assert product.stride(1) == 1, "rows lie in one piece"
        up = self.matrices.up
        block_out = min(128, _MOST_VALUES // rank)
        edges = [edge for _, start, end in self.parts for edge in (start, end)] + [0, 0] * (MOST_PARTS - num_parts)
        num_out_tiles = sum(triton.cdiv(end - start, block_out) for _, start, end in self.parts)
        _widen_rows_kernel[(triton.cdiv(num_rows, BLOCK_ROWS) * self.num_turns, num_out_tiles)](
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
            product.stride(0),
            *edges,
            RANK=rank,
            BLOCK_ROWS=BLOCK_ROWS,
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
    num_tiles, num_slices = triton.cdiv(num_rows, BLOCK_ROWS), triton.cdiv(num_inputs, SLICE)
    num_turns = min(len(down), BLOCK_ROWS, num_rows) if num_rows <= _FEW_ROWS else 1
    share = _slices_per_program(num_slices, num_tiles * len(parts))
    is_shared = share < num_slices
    num_sums = num_slices if is_shared else 1
    sums = torch.empty(num_sums, len(parts), num_rows, rank, dtype=torch.float32, device=x.device)
    if num_rows > 0:
        _narrow_rows_kernel[(num_tiles * num_turns, triton.cdiv(num_slices, share), len(parts))](
            x,
            down,
            numbers,
            sums,
            num_rows,
            num_inputs,
            down.shape[1],
            parts[0][0],
            len(parts),
            share,
            num_turns,
            x.stride(0),
            RANK=rank,
            BLOCK_ROWS=BLOCK_ROWS,
            BLOCK_IN=min(SLICE, _DOWN_BYTES // (rank * x.element_size())),
            SLICE=SLICE,
            IS_SHARED=is_shared,
            PRECISION=_precision(x),
            num_warps=4,
            **launch_options(x.device),
        )
    return NarrowRows(sums=sums, numbers=numbers, matrices=matrices, parts=parts, first=first, num_turns=num_turns)


def _slices_per_program(num_slices: int, num_tiles: int) -> int:
    if num_tiles >= _ENOUGH_PROGRAMS:
        return num_slices
    return triton.cdiv(num_slices, min(num_slices, max(1, _MANY_PROGRAMS // max(1, num_tiles))))


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


@triton.jit
def _number_after(own, number, steps):
    """The least number above this one that a row of the tile has, and so on for so many steps."""
    for _ in range(steps):
        number = tl.min(tl.where(own > number, own, NOBODY), 0)
    return number


@triton.jit
def _some_of_down(down, number, place, num_matrices, num_inputs, columns, end, RANK: tl.constexpr):
    """Columns before `end` of a matrix of an adapter, if there is one."""
    is_there = number != NOBODY
    matrix = (tl.where(is_there, number - 1, 0) * num_matrices + place).to(tl.int64) * RANK * num_inputs
    ranks = tl.arange(0, RANK)
    return tl.load(
        down + matrix + ranks[:, None] * num_inputs + columns[None, :],
        mask=is_there & (columns < end)[None, :],
        other=0.0,
    )


@triton.jit
def _some_of_up(up, number, num_outputs, outputs, end, RANK: tl.constexpr):
    is_there = number != NOBODY
    lines = (tl.where(is_there, number - 1, 0) * num_outputs + outputs).to(tl.int64)
    ranks = tl.arange(0, RANK)
    return tl.load(up + lines[:, None] * RANK + ranks[None, :], mask=is_there & (outputs < end)[:, None], other=0.0)


@triton.jit(do_not_specialize=["num_rows", "num_matrices", "first_part", "num_parts", "num_slices", "num_turns"])
def _narrow_rows_kernel(
    x,
    down,
    numbers,
    narrow,
    num_rows,
    num_inputs,
    num_matrices,  # of an adapter
    first_part,
    num_parts,
    num_slices,  # of each program
    num_turns,
    x_stride,
    RANK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    SLICE: tl.constexpr,
    IS_SHARED: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    tile, turn = tl.program_id(0) // num_turns, tl.program_id(0) % num_turns
    program, part = tl.program_id(1), tl.program_id(2)
    rows = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    ranks = tl.arange(0, RANK)
    own = tl.load(numbers + rows, mask=rows < num_rows, other=0)
    number = _number_after(own, tl.full((), 0, tl.int32), turn + 1)
    start, place = program * num_slices * SLICE, first_part + part
    end = tl.minimum(start + num_slices * SLICE, num_inputs)
    inner = tl.arange(0, BLOCK_IN)
    weights = _some_of_down(down, number, place, num_matrices, num_inputs, start + inner, end, RANK)
    wait_for_previous(IS_DEPENDENT)
    x_rows = x + rows.to(tl.int64)[:, None] * x_stride
    while number != NOBODY:
        chosen = (own == number)[:, None]
        total = tl.zeros((BLOCK_ROWS, RANK), tl.float32)
        # The last program may have fewer.
        for one in range(0, tl.cdiv(end - start, SLICE)):
            sums = tl.zeros((BLOCK_ROWS, RANK), tl.float32)
            for offset in range(0, SLICE, BLOCK_IN):
                columns = start + one * SLICE + offset + inner
                values = tl.load(x_rows + columns[None, :], mask=chosen & (columns < end)[None, :], other=0.0)
                sums = tl.dot(values, tl.trans(weights), sums, input_precision=PRECISION)
                weights = _some_of_down(down, number, place, num_matrices, num_inputs, columns + BLOCK_IN, end, RANK)
            if IS_SHARED:
                line = ((program * num_slices + one) * num_parts + part).to(tl.int64) * num_rows + rows
                tl.store(narrow + line[:, None] * RANK + ranks[None, :], sums, mask=chosen)
            else:
                total += sums
        if not IS_SHARED:
            line = part.to(tl.int64) * num_rows + rows
            tl.store(narrow + line[:, None] * RANK + ranks[None, :], total, mask=chosen)
        number = _number_after(own, number, num_turns)
        weights = _some_of_down(down, number, place, num_matrices, num_inputs, start + inner, end, RANK)


@triton.jit(do_not_specialize=["num_rows", "num_sums", "num_parts", "num_turns"])
def _widen_rows_kernel(
    product,
    narrow,
    up,
    numbers,
    num_rows,
    num_outputs,
    num_sums,  # of each row
    num_parts,
    first,
    num_turns,
    product_stride,
    start_0,
    end_0,
    start_1,
    end_1,
    start_2,
    end_2,
    RANK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    AT_ONCE: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    row_tile, turn = tl.program_id(0) // num_turns, tl.program_id(0) % num_turns
    rows = row_tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    ranks = tl.arange(0, RANK)
    own = tl.load(numbers + rows, mask=rows < num_rows, other=0)
    number = _number_after(own, tl.full((), 0, tl.int32), turn + 1)
    tile = tl.program_id(1)
    tiles_0, tiles_1 = tl.cdiv(end_0 - start_0, BLOCK_OUT), tl.cdiv(end_1 - start_1, BLOCK_OUT)
    is_past_0, is_past_1 = tile >= tiles_0, tile >= tiles_0 + tiles_1
    part = is_past_0.to(tl.int32) + is_past_1.to(tl.int32)
    start = tl.where(is_past_1, start_2, tl.where(is_past_0, start_1, start_0))
    end = tl.where(is_past_1, end_2, tl.where(is_past_0, end_1, end_0))
    tile -= tl.where(is_past_1, tiles_0 + tiles_1, tl.where(is_past_0, tiles_0, 0))
    outputs = start + tile * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    weights = _some_of_up(up, number, num_outputs, outputs, end, RANK)
    wait_for_previous(IS_DEPENDENT)
    places = product + rows.to(tl.int64)[:, None] * product_stride + (outputs - first)[None, :]
    while number != NOBODY:
        chosen = (own == number)[:, None]
        kept = chosen & (outputs < end)[None, :]
        before = tl.load(places, mask=kept, other=0.0)
        sums = tl.zeros((BLOCK_ROWS, RANK), tl.float32)
        for several in range(0, num_sums, AT_ONCE):
            for one in tl.static_range(AT_ONCE):
                line = ((several + one) * num_parts + part).to(tl.int64) * num_rows + rows
                is_there = chosen & (several + one < num_sums)
                sums += tl.load(narrow + line[:, None] * RANK + ranks[None, :], mask=is_there, other=0.0)
        added = tl.dot(sums.to(weights.dtype), tl.trans(weights), input_precision=PRECISION)
        after = before.to(tl.float32) + added.to(before.dtype).to(tl.float32)
        tl.store(places, after.to(before.dtype), mask=kept)
        number = _number_after(own, number, num_turns)
        weights = _some_of_up(up, number, num_outputs, outputs, end, RANK)
