"""Products with matrices of eight bits in Triton. Same meaning as the references of this room.

A product of few rows is bound by reading the matrix: it lies on the left of the tensor cores' product, with many
outputs for few rows. Where outputs are too few to occupy all multiprocessors, a row of the matrix is cut into shares,
whose sums the last program adds in their order. For many rows one program takes all shares in turn, and adds the same
sums in the same order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.arrivals import arrives_last, counters_on
from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.linear.triton import GATED_INPUT, GEGLU, PLAIN, finish, rows_of_tile
from facet.kernels.quantized.eight_bits.config import MOST_ROWS_AT_ONCE, Config
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.rounded_rows import MeasuredRows, RoundedRows, tensor_of
from facet.kernels.shared_memory import fitting_stages
from facet.kernels.to_eight_bits import largest_magnitude


def linear(x: Tensor | RoundedRows, matrix: QuantizedMatrix, config: Config) -> Tensor:
    return _run(x, matrix, None, PLAIN, config, None)


def geglu_linear(x: Tensor | RoundedRows, matrix: QuantizedMatrix, config: Config) -> Tensor:
    return _run(x, matrix, None, GEGLU, config, None)


def measured_geglu_linear(x: Tensor | RoundedRows, matrix: QuantizedMatrix, config: Config) -> MeasuredRows:
    """Like `geglu_linear`, with the largest magnitude of every program's columns, for whoever rounds the rows."""
    num_rows, num_parts = tensor_of(x).shape[0], triton.cdiv(matrix.num_rows // 2, config.block_out // 2)
    magnitudes = torch.empty(num_rows, num_parts, dtype=torch.float32, device=matrix.codes.device)
    return MeasuredRows(_run(x, matrix, None, GEGLU, config, magnitudes), magnitudes)


def gated_input_linear(
    x: Tensor | RoundedRows, matrix: QuantizedMatrix, per_layer_input: Tensor, config: Config
) -> Tensor:
    return _run(x, matrix, per_layer_input, GATED_INPUT, config, None)


def _run(
    x: Tensor | RoundedRows,
    matrix: QuantizedMatrix,
    gated: Tensor | None,
    activation: tl.constexpr,
    config: Config,
    magnitudes: Tensor | None,
) -> Tensor:
    inputs = tensor_of(x)
    num_rows, num_in = inputs.shape
    num_out = matrix.num_rows // 2 if activation is GEGLU else matrix.num_rows
    codes, scales = matrix.codes, matrix.scales
    assert codes.stride(1) == 1, "the codes of a row are contiguous"
    inputs = inputs if inputs.stride(1) == 1 else inputs.contiguous()
    if gated is not None and gated.stride(1) != 1:
        gated = gated.contiguous()
    is_rounded = isinstance(x, RoundedRows)
    output = torch.empty(num_rows, num_out, dtype=x.dtype, device=codes.device)
    columns_per_program = config.block_out // 2 if activation is GEGLU else config.block_out
    num_tiles = triton.cdiv(num_rows, config.rows) * triton.cdiv(num_out, columns_per_program)
    partial_sums = output
    shares_apart = 1 if config.in_turn else config.shares
    if shares_apart > 1:
        sum_type = torch.int32 if is_rounded and codes.dtype == torch.int8 else torch.float32
        sizes = (num_tiles, shares_apart, config.block_out, config.rows)
        partial_sums = torch.empty(sizes, dtype=sum_type, device=codes.device)
    grid = (num_tiles * shares_apart,)
    product_kernel[grid](
        inputs,
        x.scales if isinstance(x, RoundedRows) else scales,
        codes,
        scales,
        output if gated is None else gated,
        output,
        magnitudes,
        inputs.stride(0),
        codes.stride(0),
        scales.stride(0),
        0 if gated is None else gated.stride(0),
        num_rows,
        num_out,
        partial_sums,
        counters_on(codes.device, num_tiles) if shares_apart > 1 else scales,
        NUM_IN=num_in,
        ROWS=config.rows,
        SHARES=config.shares,
        IN_TURN=config.in_turn and config.shares > 1,
        IS_ROUNDED=is_rounded,
        IS_SHARED=config.rows > MOST_ROWS_AT_ONCE,
        ACTIVATION=activation.value,
        BLOCK_OUT=config.block_out,
        BLOCK_IN=config.block_in,
        NUM_STAGES=fitting_stages(config.num_stages, config.tile_bytes(inputs.element_size()), codes.device),
        num_warps=config.num_warps,
        **launch_options(codes.device),
    )
    return output


# One compilation serves all row counts of a configuration.
@triton.jit(do_not_specialize=["num_rows"])
def product_kernel(
    x,
    row_scales,  # read only where x are codes
    codes,
    scales,
    gated,
    output,
    magnitudes,  # of each program's results; None: nobody asks
    x_stride,
    code_stride,
    scale_stride,
    gated_stride,
    num_rows,
    num_out,
    partial_sums,
    arrivals,
    NUM_IN: tl.constexpr,
    ROWS: tl.constexpr,
    SHARES: tl.constexpr,
    IN_TURN: tl.constexpr,  # whether a program takes all shares
    IS_ROUNDED: tl.constexpr,
    IS_SHARED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    # Programs that share a tile of the matrix run side by side: one reads it from memory, the others from the cache.
    num_row_groups = tl.cdiv(num_rows, ROWS)
    shares_apart: tl.constexpr = 1 if IN_TURN else SHARES
    share, place = tl.program_id(0) % shares_apart, tl.program_id(0) // shares_apart
    first_row = place % num_row_groups * ROWS
    tile_number = place // num_row_groups
    first_column, matrix_row = rows_of_tile(tile_number, num_out, ACTIVATION, BLOCK_OUT)
    code_rows = codes + matrix_row.to(tl.int64) * code_stride
    factors = tl.load(scales + matrix_row.to(tl.int64) * scale_stride).to(tl.float32)
    # Shares of whole tiles: those of the matrix, whatever the number of rows.
    per_share: tl.constexpr = (NUM_IN + BLOCK_IN * SHARES - 1) // (BLOCK_IN * SHARES) * BLOCK_IN
    first = share * per_share
    wait_for_previous(IS_DEPENDENT)
    rows = first_row + tl.arange(0, ROWS)
    is_row = rows < num_rows
    x_rows = x + rows.to(tl.int64) * x_stride
    is_integer: tl.constexpr = IS_ROUNDED and codes.dtype.element_ty == tl.int8
    totals = tl.zeros([BLOCK_OUT, ROWS], tl.int32 if is_integer else tl.float32)
    shares_before = totals
    end = NUM_IN if IN_TURN else tl.minimum(first + per_share, NUM_IN)
    for start in tl.range(first, end, BLOCK_IN, num_stages=NUM_STAGES):
        columns = start + tl.arange(0, BLOCK_IN)
        if NUM_IN % BLOCK_IN == 0:
            tile = tl.load(code_rows[:, None] + columns[None, :], eviction_policy="" if IS_SHARED else "evict_first")
            x_tile = tl.load(x_rows[None, :] + columns[:, None], mask=is_row[None, :], other=0.0)
        else:
            is_live = columns < NUM_IN
            tile = tl.load(code_rows[:, None] + columns[None, :], mask=is_live[None, :], other=0.0)
            x_tile = tl.load(x_rows[None, :] + columns[:, None], mask=is_live[:, None] & is_row[None, :], other=0.0)
        if is_integer:
            totals = tl.dot(tile, x_tile, totals, out_dtype=tl.int32)
        elif IS_ROUNDED:
            # Tensor cores add products of fp8 with few bits: a tile's sum is added to the others in float32.
            totals = tl.dot(tile, x_tile, totals, max_num_imprecise_acc=BLOCK_IN)
        else:
            totals = tl.dot(tile.to(x.dtype.element_ty), x_tile, totals, input_precision="ieee")
        if IN_TURN and (start + BLOCK_IN) % per_share == 0:
            shares_before += totals
            totals = tl.zeros([BLOCK_OUT, ROWS], totals.dtype)
    if IN_TURN:
        totals += shares_before
    is_last = True
    if shares_apart > 1:
        within = tl.arange(0, BLOCK_OUT)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        sums_of_tile = partial_sums + place.to(tl.int64) * (SHARES * BLOCK_OUT * ROWS) + within
        tl.store(sums_of_tile + share * (BLOCK_OUT * ROWS), totals)
        is_last = arrives_last(arrivals, place, SHARES)
        if is_last:
            # In their order, whoever is last. Past the first-level cache, which is not told of others' stores.
            totals = tl.zeros([BLOCK_OUT, ROWS], totals.dtype)
            for each in tl.static_range(SHARES):
                totals += tl.load(sums_of_tile + each * (BLOCK_OUT * ROWS), cache_modifier=".cg")
    if is_last:
        sums = tl.trans(totals.to(tl.float32))
        if IS_ROUNDED:
            sums *= tl.load(row_scales + rows, mask=is_row, other=0.0)[:, None]
        sums *= factors[None, :]
        result = finish(sums, rows, is_row, first_column, gated, gated_stride, output, num_out, ACTIVATION, BLOCK_OUT)
        if magnitudes is not None:
            # Columns past the last repeat it.
            num_parts = tl.cdiv(num_out, BLOCK_OUT // 2 if ACTIVATION == GEGLU else BLOCK_OUT)
            greatest = largest_magnitude(result.to(tl.float32), axis=1)
            tl.store(magnitudes + rows.to(tl.int64) * num_parts + tile_number, greatest, mask=is_row)
