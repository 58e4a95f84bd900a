"""Products with matrices of eight bits in Triton. Same meaning as the references of this room.

A product of few rows is bound by reading the matrix: it lies on the left of the tensor cores' product, with many
outputs for few rows. Where outputs are too few to occupy all multiprocessors, a row of the matrix is cut into shares,
whose sums the last program adds in their order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.arrivals import arrives_last, counters_on
from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.linear.triton import GATED_INPUT, GEGLU, PLAIN, finish, rows_of_tile
from facet.kernels.quantized.eight_bits.config import MOST_ROWS_AT_ONCE, Config
from facet.kernels.quantized.eight_bits.row_rounding import largest_of
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.rounding import row_codes
from facet.kernels.rounded_rows import NO_CODES, MeasuredRows, RoundedRows, Rows, tensor_of
from facet.kernels.to_eight_bits import largest_magnitude, scale_of, to_codes

# What x is, as the kernel's compile-time constant: numbers, codes with scales, or one row to be rounded as it is read.
_PLAIN_INPUTS, _CODES, _TO_ROUND = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# Magnitudes that a program reads at a time: one wide load for each thread of four warps.
_MAGNITUDES_BLOCK = 1024


def linear(x: Rows, matrix: QuantizedMatrix, config: Config) -> Tensor:
    """`MeasuredRows`, here and below: a single row, which the product rounds."""
    return _run(x, matrix, None, PLAIN, config, None)


def geglu_linear(x: Rows, matrix: QuantizedMatrix, config: Config) -> Tensor:
    return _run(x, matrix, None, GEGLU, config, None)


def measured_geglu_linear(x: Rows, matrix: QuantizedMatrix, config: Config) -> MeasuredRows:
    """As `geglu_linear`, and the largest magnitude of every program's columns, for whoever rounds the rows."""
    num_rows, num_parts = tensor_of(x).shape[0], triton.cdiv(matrix.num_rows // 2, config.block_out // 2)
    magnitudes = torch.empty(num_rows, num_parts, dtype=torch.float32, device=matrix.codes.device)
    return MeasuredRows(_run(x, matrix, None, GEGLU, config, magnitudes), magnitudes)


def gated_input_linear(x: Rows, matrix: QuantizedMatrix, per_layer_input: Tensor, config: Config) -> Tensor:
    return _run(x, matrix, per_layer_input, GATED_INPUT, config, None)


def _run(
    x: Rows,
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
    kind, about_rows, num_magnitudes, constants = _PLAIN_INPUTS, scales, 0, NO_CODES
    if isinstance(x, RoundedRows):
        kind, about_rows = _CODES, x.scales
    elif isinstance(x, MeasuredRows):
        assert num_rows == 1, "other rows are rounded before"
        kind, about_rows, constants = _TO_ROUND, x.magnitudes.contiguous(), row_codes(matrix.format).constants
        num_magnitudes = about_rows.shape[1]
    output = torch.empty(num_rows, num_out, dtype=x.dtype, device=codes.device)
    columns_per_program = config.block_out // 2 if activation is GEGLU else config.block_out
    num_tiles = triton.cdiv(num_rows, config.rows) * triton.cdiv(num_out, columns_per_program)
    partial_sums = output
    if config.shares > 1:
        sum_type = torch.int32 if kind is not _PLAIN_INPUTS and codes.dtype == torch.int8 else torch.float32
        sizes = (num_tiles, config.shares, config.block_out, config.rows)
        partial_sums = torch.empty(sizes, dtype=sum_type, device=codes.device)
    grid = (num_tiles * config.shares,)
    product_kernel[grid](
        inputs,
        about_rows,
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
        counters_on(codes.device, num_tiles) if config.shares > 1 else scales,
        NUM_IN=num_in,
        NUM_MAGNITUDES=num_magnitudes,
        MAGNITUDES_BLOCK=min(_MAGNITUDES_BLOCK, triton.next_power_of_2(max(1, num_magnitudes))),
        ROWS=config.rows,
        SHARES=config.shares,
        INPUTS=kind.value,
        IS_SHARED=config.rows > MOST_ROWS_AT_ONCE,
        ACTIVATION=activation.value,
        BLOCK_OUT=config.block_out,
        BLOCK_IN=config.block_in,
        NUM_STAGES=config.num_stages,
        **constants,
        num_warps=config.num_warps,
        **launch_options(codes.device),
    )
    return output


# One compilation serves all row counts of a configuration.
@triton.jit(do_not_specialize=["num_rows"])
def product_kernel(
    x,
    about_rows,  # scales of codes, or magnitudes of the row to round
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
    NUM_MAGNITUDES: tl.constexpr,
    MAGNITUDES_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SHARES: tl.constexpr,
    INPUTS: tl.constexpr,
    IS_SHARED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    DIVISOR: tl.constexpr,
    LEAST: tl.constexpr,
    GREATEST: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    # Programs that share a tile of the matrix run side by side: one reads it from memory, the others from the cache.
    num_row_groups = tl.cdiv(num_rows, ROWS)
    share, place = tl.program_id(0) % SHARES, tl.program_id(0) // SHARES
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
    if INPUTS == _TO_ROUND:
        row_scale = 0.0
        if per_share * (SHARES - 1) >= NUM_IN:  # the last shares are empty, and may arrive last
            row_scale = scale_of(largest_of(about_rows, NUM_MAGNITUDES, MAGNITUDES_BLOCK), DIVISOR)
        x_rows = x + tl.zeros([1], tl.int64)
        is_read = tl.full([1], True, tl.int1)
    else:
        x_rows = x + rows.to(tl.int64) * x_stride
        is_read = is_row
    is_integer: tl.constexpr = INPUTS != _PLAIN_INPUTS and codes.dtype.element_ty == tl.int8
    totals = tl.zeros([BLOCK_OUT, ROWS], tl.int32 if is_integer else tl.float32)
    for start in tl.range(first, tl.minimum(first + per_share, NUM_IN), BLOCK_IN, num_stages=NUM_STAGES):
        columns = start + tl.arange(0, BLOCK_IN)
        if NUM_IN % BLOCK_IN == 0:
            tile = tl.load(code_rows[:, None] + columns[None, :], eviction_policy="" if IS_SHARED else "evict_first")
            x_tile = tl.load(x_rows[None, :] + columns[:, None], mask=is_read[None, :], other=0.0)
        else:
            is_live = columns < NUM_IN
            tile = tl.load(code_rows[:, None] + columns[None, :], mask=is_live[None, :], other=0.0)
            x_tile = tl.load(x_rows[None, :] + columns[:, None], mask=is_live[:, None] & is_read[None, :], other=0.0)
        if INPUTS == _TO_ROUND:
            if start == first:  # here, and not before the loop: the first tiles are on their way meanwhile
                row_scale = scale_of(largest_of(about_rows, NUM_MAGNITUDES, MAGNITUDES_BLOCK), DIVISOR)
            x_tile = to_codes(x_tile.to(tl.float32), row_scale, codes.dtype.element_ty, LEAST, GREATEST)
            # The row in the place of all others too, whose results nobody stores.
            x_tile = tl.broadcast_to(x_tile, [BLOCK_IN, ROWS])
        if is_integer:
            totals = tl.dot(tile, x_tile, totals, out_dtype=tl.int32)
        elif INPUTS != _PLAIN_INPUTS:
            # Tensor cores add products of fp8 with few bits: a tile's sum is added to the others in float32.
            totals = tl.dot(tile, x_tile, totals, max_num_imprecise_acc=BLOCK_IN)
        else:
            totals = tl.dot(tile.to(x.dtype.element_ty), x_tile, totals, input_precision="ieee")
    is_last = True
    if SHARES > 1:
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
        if INPUTS == _CODES:
            sums *= tl.load(about_rows + rows, mask=is_row, other=0.0)[:, None]
        elif INPUTS == _TO_ROUND:
            sums *= row_scale
        sums *= factors[None, :]
        result = finish(sums, rows, is_row, first_column, gated, gated_stride, output, num_out, ACTIVATION, BLOCK_OUT)
        if magnitudes is not None:
            # Columns past the last repeat it.
            num_parts = tl.cdiv(num_out, BLOCK_OUT // 2 if ACTIVATION == GEGLU else BLOCK_OUT)
            greatest = largest_magnitude(result.to(tl.float32), axis=1)
            tl.store(magnitudes + rows.to(tl.int64) * num_parts + tile_number, greatest, mask=is_row)
