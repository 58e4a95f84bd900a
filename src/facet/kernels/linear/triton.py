"""Matrix products of few rows in Triton, with the activation that follows: bound by reading the weight once.

Same meaning as `reference.py`, in any configuration; `config.py` chooses one. Sums are float32. What
the reference rounds between a product and its activation is rounded here too, although it never leaves the registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.geglu.triton import let_through
from facet.kernels.linear.config import MAX_VECTOR_ROWS, Config
from facet.kernels.shared_memory import fitting_stages

# What follows the product, as the kernel's compile-time constant.
PLAIN, GEGLU, GATED_INPUT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# 2-byte values in a 16-byte load, which one thread multiplies and sums before it touches its running sums.
VECTOR = tl.constexpr(8)


def linear(x: Tensor, weight: Tensor, config: Config) -> Tensor:
    return _run(x, weight, None, PLAIN, config)


def geglu_linear(x: Tensor, weight: Tensor, config: Config) -> Tensor:
    return _run(x, weight, None, GEGLU, config)


def gated_input_linear(x: Tensor, weight: Tensor, per_layer_input: Tensor, config: Config) -> Tensor:
    return _run(x, weight, per_layer_input, GATED_INPUT, config)


def _run(x: Tensor, weight: Tensor, gated: Tensor | None, activation: tl.constexpr, config: Config) -> Tensor:
    num_rows, num_in = x.shape
    num_out = weight.shape[0] // 2 if activation is GEGLU else weight.shape[0]
    assert weight.stride(1) == 1, "the rows of a weight are contiguous"
    x = x if x.stride(1) == 1 else x.contiguous()
    if gated is not None and gated.stride(1) != 1:
        gated = gated.contiguous()
    output = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    rows_per_program = config.num_rows if config.is_dot else min(MAX_VECTOR_ROWS, triton.next_power_of_2(num_rows))
    if num_rows == 0:
        return output
    columns_per_program = config.block_out // 2 if activation is GEGLU else config.block_out
    grid = (triton.cdiv(num_rows, rows_per_program) * triton.cdiv(num_out, columns_per_program),)
    _few_rows_kernel[grid](
        x,
        weight,
        x if gated is None else gated,
        output,
        x.stride(0),
        weight.stride(0),
        0 if gated is None else gated.stride(0),
        num_rows,
        num_out,
        NUM_IN=num_in,
        ROWS=rows_per_program,
        IS_DOT=config.is_dot,
        ACTIVATION=activation.value,
        BLOCK_OUT=config.block_out,
        BLOCK_IN=config.block_in,
        NUM_STAGES=fitting_stages(config.num_stages, config.tile_bytes(x.element_size()), x.device),
        num_warps=config.num_warps,
        **launch_options(x.device),
    )
    return output


@triton.jit
def add_products(totals, weight_tile, x_row, places, is_live):
    """totals [BLOCK_OUT, BLOCK_IN / VECTOR] plus, of each VECTOR neighbours, the products with one row of x."""
    x_tile = tl.load(x_row + places, mask=is_live, other=0.0).to(tl.float32)
    return totals + tl.sum(weight_tile.to(tl.float32) * x_tile[None, :, :], 2)


@triton.jit
def _add_rows(
    totals_0, totals_1, totals_2, totals_3, weight_tile, x_0, x_1, x_2, x_3, places, is_live, ROWS: tl.constexpr
):
    totals_0 = add_products(totals_0, weight_tile, x_0, places, is_live)
    if ROWS > 1:
        totals_1 = add_products(totals_1, weight_tile, x_1, places, is_live)
    if ROWS > 2:
        totals_2 = add_products(totals_2, weight_tile, x_2, places, is_live)
        totals_3 = add_products(totals_3, weight_tile, x_3, places, is_live)
    return totals_0, totals_1, totals_2, totals_3


@triton.jit
def tile_places(BLOCK_IN: tl.constexpr):
    """[BLOCK_IN / VECTOR, VECTOR]: columns as the threads hold them, VECTOR neighbours each."""
    return tl.arange(0, BLOCK_IN // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]


@triton.jit
def load_weight_tile(weight_rows, places, is_live):
    """[BLOCK_OUT, BLOCK_IN / VECTOR, VECTOR]. The weight is read once: it should not push others out."""
    pointers = weight_rows[:, None, None] + places[None, :, :]
    return tl.load(pointers, mask=is_live[None, :, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def rows_of_tile(tile_number, num_out, ACTIVATION: tl.constexpr, BLOCK_OUT: tl.constexpr):
    """The first column of a tile, and the rows of the weight that it reads.

    Beyond the last column it reads that column again, which needs no mask; the store drops the result.
    """
    local = tl.arange(0, BLOCK_OUT)
    if ACTIVATION == GEGLU:
        # Gate and up rows of a column are neighbours in the tile, so that they can be split apart again.
        first_column = tile_number * (BLOCK_OUT // 2)
        weight_row = tl.minimum(first_column + local // 2, num_out - 1) + local % 2 * num_out
    else:
        first_column = tile_number * BLOCK_OUT
        weight_row = tl.minimum(first_column + local, num_out - 1)
    return first_column, weight_row


@triton.jit
def finish(
    sums,  # [rows, BLOCK_OUT]
    rows,
    is_row,
    first_column,
    gated,
    gated_stride,
    output,
    num_out,
    ACTIVATION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
):
    """Rounds, applies the activation, stores. Returns what it stored, [rows, columns]."""
    rounded = sums.to(output.dtype.element_ty)
    if ACTIVATION == GEGLU:
        columns = first_column + tl.arange(0, BLOCK_OUT // 2)
        gate, up = tl.split(tl.reshape(rounded, [sums.shape[0], BLOCK_OUT // 2, 2]))
    else:
        columns = first_column + tl.arange(0, BLOCK_OUT)
        gate = rounded
    is_live = is_row[:, None] & (columns < num_out)[None, :]
    if ACTIVATION == GATED_INPUT:
        up = tl.load(gated + rows[:, None].to(tl.int64) * gated_stride + columns[None, :], mask=is_live, other=0.0)
    result = rounded if ACTIVATION == PLAIN else let_through(gate, up)
    tl.store(output + rows[:, None].to(tl.int64) * num_out + columns[None, :], result, mask=is_live)
    return result


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@triton.jit(do_not_specialize=["num_rows"])
def _few_rows_kernel(
    x,
    weight,
    gated,
    output,
    x_stride,
    weight_stride,
    gated_stride,
    num_rows,
    num_out,
    NUM_IN: tl.constexpr,
    ROWS: tl.constexpr,
    IS_DOT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    # Not after the wait: x would then be loaded only when the first tile of the weight has come.
    let_next_start(IS_DEPENDENT)
    # Programs that share a tile of the weight run side by side: one reads it from memory, the others from the cache.
    num_row_groups = tl.cdiv(num_rows, ROWS)
    first_row = tl.program_id(0) % num_row_groups * ROWS
    tile_number = tl.program_id(0) // num_row_groups
    first_column, weight_row = rows_of_tile(tile_number, num_out, ACTIVATION, BLOCK_OUT)
    weight_rows = weight + weight_row.to(tl.int64) * weight_stride

    if IS_DOT:
        wait_for_previous(IS_DEPENDENT)
        rows = first_row + tl.arange(0, ROWS)
        is_row = rows < num_rows
        totals = tl.zeros([BLOCK_OUT, ROWS], tl.float32)
        for start in tl.range(0, NUM_IN, BLOCK_IN, num_stages=NUM_STAGES):
            columns = start + tl.arange(0, BLOCK_IN)
            is_live = columns < NUM_IN
            weight_tile = tl.load(
                weight_rows[:, None] + columns[None, :],
                mask=is_live[None, :],
                other=0.0,
                eviction_policy="evict_first",
            )
            x_tile = tl.load(
                x + rows[None, :].to(tl.int64) * x_stride + columns[:, None],
                mask=is_live[:, None] & is_row[None, :],
                other=0.0,
            )
            totals = tl.dot(weight_tile, x_tile, totals, input_precision="ieee")
        sums = tl.trans(totals)
        finish(sums, rows, is_row, first_column, gated, gated_stride, output, num_out, ACTIVATION, BLOCK_OUT)
    else:
        totals_0 = tl.zeros([BLOCK_OUT, BLOCK_IN // VECTOR], tl.float32)
        totals_1 = totals_0
        totals_2 = totals_0
        totals_3 = totals_0
        # Rows that are not there are computed as the last one is.
        x_0 = x + first_row * x_stride
        x_1 = x + tl.minimum(first_row + 1, num_rows - 1) * x_stride
        x_2 = x + tl.minimum(first_row + 2, num_rows - 1) * x_stride
        x_3 = x + tl.minimum(first_row + 3, num_rows - 1) * x_stride
        # The first tile of the weight is on its way while x is still being computed.
        places = tile_places(BLOCK_IN)
        is_live = places < NUM_IN
        tile = load_weight_tile(weight_rows, places, is_live)
        wait_for_previous(IS_DEPENDENT)
        totals_0, totals_1, totals_2, totals_3 = _add_rows(
            totals_0, totals_1, totals_2, totals_3, tile, x_0, x_1, x_2, x_3, places, is_live, ROWS
        )
        for start in tl.range(BLOCK_IN, NUM_IN, BLOCK_IN, num_stages=NUM_STAGES):
            places = start + tile_places(BLOCK_IN)
            is_live = places < NUM_IN
            tile = load_weight_tile(weight_rows, places, is_live)
            totals_0, totals_1, totals_2, totals_3 = _add_rows(
                totals_0, totals_1, totals_2, totals_3, tile, x_0, x_1, x_2, x_3, places, is_live, ROWS
            )
        for row in tl.static_range(ROWS):
            totals = totals_0 if row == 0 else totals_1 if row == 1 else totals_2 if row == 2 else totals_3
            sums = tl.sum(totals, 1)[None, :]
            rows = first_row + row + tl.arange(0, 1)
            finish(
                sums, rows, rows < num_rows, first_column, gated, gated_stride, output, num_out, ACTIVATION, BLOCK_OUT
            )
