"""Products of few rows with matrices of any format, on a GPU: codes become values on their way to the tensor cores.

Values are those of `widen.py`, rounded once to the type of activations, and sums are one chain over the inputs in their
order. So a row has the bits that a product in one chain with widened values gives it (`linear/chain.py`).
"""

# Kernels are written in Triton's language, whose values have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.widen import KINDS, NUMBER, as_numbers, scale_of, value_of_code

# Beyond it, values are better made once for all rows.
MAX_ROWS = 64
_BLOCK_IN = 128
# Programs of 64 outputs, or 32, should be two for each multiprocessor of a large GPU.
_MANY_PROGRAMS = 264


def serves(matrix: QuantizedMatrix, num_rows: int) -> bool:
    """Groups have to divide a block, or a block a group."""
    group = matrix.format.scales.group
    is_even = group is None or group % _BLOCK_IN == 0 or _BLOCK_IN % group == 0
    return 0 < num_rows <= MAX_ROWS and is_even


def block_out_of(num_out: int) -> int:
    """Outputs of a program."""
    return next((size for size in (64, 32) if num_out >= size * _MANY_PROGRAMS), 16)


def linear(x: Tensor, matrix: QuantizedMatrix) -> Tensor:
    """x [rows, inputs] @ values^T, in x's type. Columns lie as they are stored."""
    num_rows, num_in = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    output = torch.empty(num_rows, matrix.num_rows, dtype=x.dtype, device=x.device)
    block_out = block_out_of(matrix.num_rows)
    num_scales = matrix.scales.shape[-1]
    num_coarse = 1 if matrix.coarse_scales is None else matrix.coarse_scales.shape[-1]
    any_format_kernel[(triton.cdiv(matrix.num_rows, block_out),)](
        x,
        matrix.codes,
        as_numbers(matrix.scales),
        as_numbers(matrix.coarse_scales),
        matrix.zeros,
        as_numbers(matrix.minimums),
        as_numbers(matrix.coarse_minimums),
        output,
        x.stride(0),
        matrix.codes.stride(0),
        matrix.scales.stride(0),
        0 if matrix.coarse_scales is None else matrix.coarse_scales.stride(0),
        num_rows,
        matrix.num_rows,
        NUM_IN=num_in,
        GROUP=matrix.format.scales.group or num_in,
        PER_COARSE=triton.cdiv(num_scales, num_coarse),
        KIND=KINDS[matrix.format.codes].value,
        IS_POWER=matrix.scales.dtype == torch.float8_e8m0fnu,
        ROWS=max(16, triton.next_power_of_2(num_rows)),
        BLOCK_OUT=block_out,
        BLOCK_IN=_BLOCK_IN,
        num_warps=4,
        num_stages=3,
        **launch_options(x.device),
    )
    return output


@triton.jit
def _spread(numbers, GROUP: tl.constexpr, BLOCK_IN: tl.constexpr):
    """[outputs, groups] as [outputs, inputs]; where a block has one group, it stays one."""
    if GROUP >= BLOCK_IN:
        return numbers
    else:
        OUT: tl.constexpr = numbers.shape[0]
        spread = tl.broadcast_to(numbers[:, :, None], [OUT, BLOCK_IN // GROUP, GROUP])
        return tl.reshape(spread, [OUT, BLOCK_IN])


# One compilation serves all row counts of a kind.
@triton.jit(do_not_specialize=["num_rows", "num_out"])
def any_format_kernel(
    x,
    codes,
    scales,
    coarse_scales,
    zeros,
    minimums,
    coarse_minimums,
    output,
    x_stride,
    code_stride,
    scale_stride,
    coarse_stride,
    num_rows,
    num_out,
    NUM_IN: tl.constexpr,
    GROUP: tl.constexpr,
    PER_COARSE: tl.constexpr,
    KIND: tl.constexpr,
    IS_POWER: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    NUM_GROUPS: tl.constexpr = BLOCK_IN // GROUP if GROUP < BLOCK_IN else 1
    columns_of_output = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    # Beyond the last output that one is read again, which needs no mask; the store drops the result.
    matrix_row = tl.minimum(columns_of_output, num_out - 1).to(tl.int64)[:, None]
    rows = tl.arange(0, ROWS)
    is_row = rows < num_rows
    wait_for_previous(IS_DEPENDENT)
    totals = tl.zeros([BLOCK_OUT, ROWS], tl.float32)
    for start in range(0, NUM_IN, BLOCK_IN):
        inputs = start + tl.arange(0, BLOCK_IN)
        if KIND == NUMBER:
            code = tl.load(codes + matrix_row * code_stride + inputs[None, :], mask=inputs[None, :] < NUM_IN, other=0.0)
        else:
            octets = start // 2 + tl.arange(0, BLOCK_IN // 2)[None, :]
            octet = tl.load(codes + matrix_row * code_stride + octets, mask=octets < NUM_IN // 2, other=0).to(tl.int32)
            code = tl.reshape(tl.join(octet & 15, octet >> 4), [BLOCK_OUT, BLOCK_IN])
        value = value_of_code(code, KIND)
        group = start // GROUP + tl.arange(0, NUM_GROUPS)[None, :]
        is_live = group * GROUP < NUM_IN
        if zeros is not None:
            zero = tl.load(zeros + matrix_row * scale_stride + group, mask=is_live, other=0).to(tl.float32)
            value -= _spread(zero, GROUP, BLOCK_IN)
        scale = scale_of(
            scales, coarse_scales, matrix_row, group, scale_stride, coarse_stride, is_live, PER_COARSE, IS_POWER
        )  # fmt: skip
        value *= _spread(scale, GROUP, BLOCK_IN)
        if minimums is not None:
            minimum = scale_of(
                minimums, coarse_minimums, matrix_row, group, scale_stride, coarse_stride, is_live, PER_COARSE, IS_POWER
            )  # fmt: skip
            value -= _spread(minimum, GROUP, BLOCK_IN)
        # Where inputs end, x is zero, and so is the product: no value is infinite.
        is_there = is_row[None, :] & (inputs[:, None] < NUM_IN)
        x_tile = tl.load(x + rows[None, :].to(tl.int64) * x_stride + inputs[:, None], mask=is_there, other=0.0)
        totals = tl.dot(value.to(x.dtype.element_ty), x_tile, totals, input_precision="ieee")
    places = output + rows[:, None].to(tl.int64) * num_out + columns_of_output[None, :]
    is_stored = is_row[:, None] & (columns_of_output[None, :] < num_out)
    tl.store(places, tl.trans(totals).to(output.dtype.element_ty), mask=is_stored)
