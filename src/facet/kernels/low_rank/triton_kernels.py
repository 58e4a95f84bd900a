"""The kernels of low-rank additions. `triton.py` launches them, and says how they belong together."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False

import triton
import triton.language as tl

from facet.kernels.dependent_launch import let_next_start, wait_for_previous
from facet.kernels.geglu.triton import let_through

NOBODY = tl.constexpr(2**31 - 1)  # behind the last number


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
def narrow_rows_kernel(
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
def narrow_few_rows_kernel(
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
def widen_rows_kernel(
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
def widen_to_geglu_kernel(
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
