"""Low-rank additions in Triton. Same meaning as `reference.py`.

Two launches: rows become narrow (x through `down`), then wide again, onto the product. A tile of rows goes through the
matrices of each adapter that one of its rows has; of the results each row keeps what is its own.

Sums over inputs are cut into slices of `SLICE`, each summed by itself and then added in order, whether one program has
all of them or each has a program of its own: so a row's bits depend neither on the other rows nor on their number. Not
timed on a card yet.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.low_rank.matrices import LowRankMatrices

SLICE = 512
BLOCK_ROWS = 16
# Values of `up` that a program has at once: outputs of the largest tile times the rank that still leaves them.
_MOST_VALUES = 128 * 128
MOST_PARTS = 3
NOBODY = tl.constexpr(2**31 - 1)  # behind the last number
# So many rows fill a card with programs that have all slices each.
_FEW_ROWS = 64


def add_low_rank(product: Tensor, x: Tensor, numbers: Tensor, matrices: LowRankMatrices, *, first: int = 0) -> None:
    num_rows, num_inputs = x.shape
    if num_rows == 0:
        return
    assert x.stride(1) == product.stride(1) == 1, "rows lie in one piece"
    down, up, rank = matrices.down, matrices.up, matrices.rank
    parts = matrices.parts_within(first, first + product.shape[1])
    assert 1 <= len(parts) <= MOST_PARTS, "a product has few parts"
    num_slices = triton.cdiv(num_inputs, SLICE)
    slices_per_program = 1 if num_rows <= _FEW_ROWS else num_slices
    num_programs = triton.cdiv(num_slices, slices_per_program)
    narrow = torch.empty(num_programs, len(parts), num_rows, rank, dtype=torch.float32, device=x.device)
    num_tiles = triton.cdiv(num_rows, BLOCK_ROWS)
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    _narrow_rows_kernel[(num_tiles, num_programs, len(parts))](
        x,
        down,
        numbers,
        narrow,
        num_rows,
        num_inputs,
        down.shape[1],
        parts[0][0],
        len(parts),
        slices_per_program,
        x.stride(0),
        RANK=rank,
        BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_IN=64 if rank <= 64 else 32,
        SLICE=SLICE,
        PRECISION=precision,
        num_warps=4,
        **launch_options(x.device),
    )
    block_out = min(128, _MOST_VALUES // rank)
    edges = [edge for _, start, end in parts for edge in (start, end)] + [0, 0] * (MOST_PARTS - len(parts))
    num_out_tiles = sum(triton.cdiv(end - start, block_out) for _, start, end in parts)
    _widen_rows_kernel[(num_tiles, num_out_tiles)](
        product,
        narrow,
        up,
        numbers,
        num_rows,
        up.shape[1],
        num_programs,
        len(parts),
        first,
        product.stride(0),
        *edges,
        RANK=rank,
        BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_OUT=block_out,
        PRECISION=precision,
        num_warps=4,
        **launch_options(x.device),
    )


@triton.jit
def _next_number(own, number):
    """The least number above this one that a row of the tile has."""
    return tl.min(tl.where(own > number, own, NOBODY), 0)


@triton.jit(do_not_specialize=["num_rows", "num_parts", "first_part", "num_launched", "num_slices"])
def _narrow_rows_kernel(
    x,
    down,
    numbers,
    narrow,
    num_rows,
    num_inputs,
    num_parts,
    first_part,
    num_launched,
    num_slices,  # of each program
    x_stride,
    RANK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    SLICE: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    start_after_previous(IS_DEPENDENT)
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    ranks = tl.arange(0, RANK)
    program, part = tl.program_id(1), tl.program_id(2)
    own = tl.load(numbers + rows, mask=rows < num_rows, other=0)
    if _next_number(own, 0) != NOBODY:
        x_rows = x + rows.to(tl.int64)[:, None] * x_stride
        found = tl.zeros((BLOCK_ROWS, RANK), tl.float32)
        number = _next_number(own, 0)
        while number != NOBODY:
            chosen = own == number
            matrix = ((number - 1) * num_parts + first_part + part).to(tl.int64) * RANK * num_inputs
            total = tl.zeros((BLOCK_ROWS, RANK), tl.float32)
            for one in range(0, num_slices):
                first = (program * num_slices + one) * SLICE
                sums = tl.zeros((BLOCK_ROWS, RANK), tl.float32)
                for offset in range(0, SLICE, BLOCK_IN):
                    columns = first + offset + tl.arange(0, BLOCK_IN)
                    is_there = columns < num_inputs
                    values = tl.load(x_rows + columns[None, :], mask=chosen[:, None] & is_there[None, :], other=0.0)
                    weights = tl.load(
                        down + matrix + ranks[:, None] * num_inputs + columns[None, :],
                        mask=is_there[None, :],
                        other=0.0,
                    )
                    sums = tl.dot(values, tl.trans(weights), sums, input_precision=PRECISION)
                total += sums
            found = tl.where(chosen[:, None], total, found)
            number = _next_number(own, number)
        start = (program * num_launched + part).to(tl.int64) * num_rows
        tl.store(narrow + (start + rows)[:, None] * RANK + ranks[None, :], found, mask=(rows < num_rows)[:, None])


@triton.jit(
    do_not_specialize=[
        "num_rows",
        "num_programs",
        "num_launched",
        "first",
        "start_0",
        "end_0",
        "start_1",
        "end_1",
        "start_2",
        "end_2",
    ]
)
def _widen_rows_kernel(
    product,
    narrow,
    up,
    numbers,
    num_rows,
    num_outputs,
    num_programs,  # that share the sums of a row
    num_launched,
    first,
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
    PRECISION: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    start_after_previous(IS_DEPENDENT)
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    ranks = tl.arange(0, RANK)
    own = tl.load(numbers + rows, mask=rows < num_rows, other=0)
    if _next_number(own, 0) != NOBODY:
        tile = tl.program_id(1)
        tiles_0, tiles_1 = tl.cdiv(end_0 - start_0, BLOCK_OUT), tl.cdiv(end_1 - start_1, BLOCK_OUT)
        is_past_0, is_past_1 = tile >= tiles_0, tile >= tiles_0 + tiles_1
        part = is_past_0.to(tl.int32) + is_past_1.to(tl.int32)
        start = tl.where(is_past_1, start_2, tl.where(is_past_0, start_1, start_0))
        end = tl.where(is_past_1, end_2, tl.where(is_past_0, end_1, end_0))
        tile -= tl.where(is_past_1, tiles_0 + tiles_1, tl.where(is_past_0, tiles_0, 0))
        is_row = (rows < num_rows)[:, None]
        sums = tl.zeros((BLOCK_ROWS, RANK), tl.float32)
        for program in range(0, num_programs):
            line = (program * num_launched + part).to(tl.int64) * num_rows + rows
            sums += tl.load(narrow + line[:, None] * RANK + ranks[None, :], mask=is_row, other=0.0)
        values = sums.to(up.dtype.element_ty)
        outputs = start + tile * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        is_output = outputs < end
        added = tl.zeros((BLOCK_ROWS, BLOCK_OUT), tl.float32)
        number = _next_number(own, 0)
        while number != NOBODY:
            chosen = own == number
            lines = ((number - 1) * num_outputs + outputs).to(tl.int64)
            weights = tl.load(up + lines[:, None] * RANK + ranks[None, :], mask=is_output[:, None], other=0.0)
            found = tl.dot(values, tl.trans(weights), input_precision=PRECISION)
            added = tl.where(chosen[:, None], found, added)
            number = _next_number(own, number)
        places = product + rows.to(tl.int64)[:, None] * product_stride + (outputs - first)[None, :]
        kept = (own > 0)[:, None] & is_output[None, :]
        before = tl.load(places, mask=kept, other=0.0)
        after = before.to(tl.float32) + added.to(before.dtype).to(tl.float32)
        tl.store(places, after.to(before.dtype), mask=kept)
