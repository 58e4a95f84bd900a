"""Low-rank additions in Triton. Same meaning as `reference.py`.

Two launches: rows become narrow (x through `down`), then wide again, onto the product. The first may come before the
product, which hides it. A tile of rows goes through the matrices of each adapter that one of its rows has, one after
the other or, where rows are few, in programs of their own: *turns*.

Sums over inputs are cut into slices, each summed by itself and then added in order: where rows are many, by the program
that has them all, otherwise by those that need the sum. So a row's bits depend neither on the other rows nor on their
number.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.geglu.triton import let_through
from facet.kernels.low_rank.matrices import LowRankMatrices

LEAST_SLICE, MOST_SLICES = 256, 24
MOST_PARTS = 3
NOBODY = tl.constexpr(2**31 - 1)  # behind the last number
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
        _widen_to_geglu_kernel[(num_row_programs, triton.cdiv(num_out_tiles, share))](
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
        _widen_rows_kernel[(num_row_programs, num_out_programs)](
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
        _narrow_few_rows_kernel[grid](*given, share, num_turns, **constants)
    else:
        _narrow_rows_kernel[(num_tiles, len(parts))](*given, **constants)
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


@triton.jit
def _with_addition(before, values, weights, chosen, PRECISION: tl.constexpr):
    added = tl.dot(values, tl.trans(weights), input_precision=PRECISION).to(before.dtype)
    return tl.where(chosen, (before.to(tl.float32) + added.to(tl.float32)).to(before.dtype), before)


@triton.jit(do_not_specialize=["num_rows", "num_matrices", "first_part", "num_parts"])
def _narrow_rows_kernel(
    x,
    down,
    numbers,
    narrow,
    num_rows,
    num_inputs,
    x_stride,
    num_matrices,  # of an adapter
    first_part,
    num_parts,
    RANK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    SLICE: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    # Were it one, Triton would fold the addition of its sum into the product that makes it, and bits would be others.
    tl.static_assert(SLICE > BLOCK_IN, "a slice has several blocks")
    let_next_start(IS_DEPENDENT)
    part = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    own = tl.load(numbers + rows, mask=rows < num_rows, other=0)
    number = _number_after(own, tl.full((), 0, tl.int32), 1)
    wait_for_previous(IS_DEPENDENT)
    x_rows = x + rows.to(tl.int64)[:, None] * x_stride
    places = narrow + (part.to(tl.int64) * num_rows + rows)[:, None] * RANK + tl.arange(0, RANK)[None, :]
    while number != NOBODY:
        chosen = (own == number)[:, None]
        total = tl.zeros((BLOCK_ROWS, RANK), tl.float32)
        sums = tl.zeros((BLOCK_ROWS, RANK), tl.float32)
        # One loop, not two: loads of the next slice are on their way meanwhile.
        for block in range(0, tl.cdiv(num_inputs, BLOCK_IN)):
            columns = block * BLOCK_IN + tl.arange(0, BLOCK_IN)
            values = tl.load(x_rows + columns[None, :], mask=chosen & (columns < num_inputs)[None, :], other=0.0)
            weights = _some_of_down(
                down, number, first_part + part, num_matrices, num_inputs, columns, num_inputs, RANK
            )
            sums = tl.dot(values, tl.trans(weights), sums, input_precision=PRECISION)
            is_whole = (block + 1) % (SLICE // BLOCK_IN) == 0
            total += tl.where(is_whole, sums, 0.0)
            sums = tl.where(is_whole, 0.0, sums)
        tl.store(places, total + sums, mask=chosen)
        number = _number_after(own, number, 1)


@triton.jit(do_not_specialize=["num_rows", "num_matrices", "first_part", "num_parts", "num_slices", "num_turns"])
def _narrow_few_rows_kernel(
    x,
    down,
    numbers,
    narrow,
    num_rows,
    num_inputs,
    x_stride,
    num_matrices,
    first_part,
    num_parts,
    num_slices,  # of each program
    num_turns,
    RANK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    SLICE: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Stores the sum of each slice."""
    let_next_start(IS_DEPENDENT)
    tile, turn = tl.program_id(0) // num_turns, tl.program_id(0) % num_turns
    program, part = tl.program_id(1), tl.program_id(2)
    rows = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
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
        for one in range(0, tl.cdiv(end - start, SLICE)):
            sums = tl.zeros((BLOCK_ROWS, RANK), tl.float32)
            for offset in range(0, SLICE, BLOCK_IN):
                columns = start + one * SLICE + offset + inner
                values = tl.load(x_rows + columns[None, :], mask=chosen & (columns < end)[None, :], other=0.0)
                sums = tl.dot(values, tl.trans(weights), sums, input_precision=PRECISION)
                weights = _some_of_down(down, number, place, num_matrices, num_inputs, columns + BLOCK_IN, end, RANK)
            line = ((program * num_slices + one) * num_parts + part).to(tl.int64) * num_rows + rows
            tl.store(narrow + line[:, None] * RANK + tl.arange(0, RANK)[None, :], sums, mask=chosen)
        number = _number_after(own, number, num_turns)
        weights = _some_of_down(down, number, place, num_matrices, num_inputs, start + inner, end, RANK)


@triton.jit(do_not_specialize=["num_rows", "num_sums", "num_parts", "num_turns", "num_tiles"])
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
    num_tiles,  # of outputs, of each program
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
    program, span = tl.program_id(1), num_tiles * BLOCK_OUT
    num_0, num_1 = tl.cdiv(end_0 - start_0, span), tl.cdiv(end_1 - start_1, span)
    is_past_0, is_past_1 = program >= num_0, program >= num_0 + num_1
    part = is_past_0.to(tl.int32) + is_past_1.to(tl.int32)
    start = tl.where(is_past_1, start_2, tl.where(is_past_0, start_1, start_0))
    end = tl.where(is_past_1, end_2, tl.where(is_past_0, end_1, end_0))
    program -= tl.where(is_past_1, num_0 + num_1, tl.where(is_past_0, num_0, 0))
    first_outputs = start + program * span + tl.arange(0, BLOCK_OUT)
    end = tl.minimum(start + (program + 1) * span, end)
    weights = _some_of_up(up, number, num_outputs, first_outputs, end, RANK)
    wait_for_previous(IS_DEPENDENT)
    product_rows = product - first + rows.to(tl.int64)[:, None] * product_stride
    while number != NOBODY:
        chosen = (own == number)[:, None]
        before = tl.load(product_rows + first_outputs[None, :], mask=chosen & (first_outputs < end)[None, :], other=0.0)
        sums = tl.zeros((BLOCK_ROWS, RANK), tl.float32)
        for several in range(0, num_sums, AT_ONCE):
            for one in tl.static_range(AT_ONCE):
                line = ((several + one) * num_parts + part).to(tl.int64) * num_rows + rows
                is_there = chosen & (several + one < num_sums)
                sums += tl.load(narrow + line[:, None] * RANK + ranks[None, :], mask=is_there, other=0.0)
        values = sums.to(weights.dtype)
        for tile in range(num_tiles):
            outputs = first_outputs + tile * BLOCK_OUT
            later = outputs + BLOCK_OUT
            later_before = tl.load(product_rows + later[None, :], mask=chosen & (later < end)[None, :], other=0.0)
            after = _with_addition(before, values, weights, chosen, PRECISION)
            tl.store(product_rows + outputs[None, :], after, mask=chosen & (outputs < end)[None, :])
            weights = _some_of_up(up, number, num_outputs, later, end, RANK)
            before = later_before
        number = _number_after(own, number, num_turns)
        weights = _some_of_up(up, number, num_outputs, first_outputs, end, RANK)


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])
def _widen_to_geglu_kernel(
    product,  # gates, and what they open: [rows, 2, width]
    opened,
    narrow,
    up,
    numbers,
    num_rows,
    width,
    num_tiles,  # of each program
    product_stride,
    RANK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    own = tl.load(numbers + rows, mask=rows < num_rows, other=0)
    first_number = _number_after(own, tl.full((), 0, tl.int32), 1)
    is_row = (rows < num_rows)[:, None]
    product_rows = product + rows.to(tl.int64)[:, None] * product_stride
    opened_rows = opened + rows.to(tl.int64)[:, None] * width
    narrow_rows = narrow + rows.to(tl.int64)[:, None] * RANK + tl.arange(0, RANK)[None, :]
    wait_for_previous(IS_DEPENDENT)
    for tile in range(num_tiles):
        columns = (tl.program_id(1) * num_tiles + tile) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        kept = is_row & (columns < width)[None, :]
        gate = tl.load(product_rows + columns[None, :], mask=kept, other=0.0)
        other = tl.load(product_rows + width + columns[None, :], mask=kept, other=0.0)
        number = first_number
        while number != NOBODY:
            chosen = (own == number)[:, None]
            values = tl.load(narrow_rows, mask=chosen, other=0.0).to(gate.dtype)
            weights = _some_of_up(up, number, 2 * width, columns, width, RANK)
            gate = _with_addition(gate, values, weights, chosen, PRECISION)
            values = tl.load(narrow_rows + num_rows.to(tl.int64) * RANK, mask=chosen, other=0.0).to(gate.dtype)
            weights = _some_of_up(up, number, 2 * width, width + columns, 2 * width, RANK)
            other = _with_addition(other, values, weights, chosen, PRECISION)
            number = _number_after(own, number, 1)
        tl.store(opened_rows + columns[None, :], let_through(gate, other), mask=kept)
