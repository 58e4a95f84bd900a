"""Products of few rows with matrices of any format, or those of experts, on a GPU: codes become values on their way to
the tensor cores.

Values are those of `widen.py`, rounded once to the type of activations, and on Hopper sums are one chain over the
inputs in their order. So a row has the bits that a product in one chain with widened values gives it
(`linear/chain.py`). On other cards Triton has tensor cores take inputs of small types in another order.
"""

# Kernels are written in Triton's language, whose values have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.moe.groups import Groups
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.widen import constants_of, strides_of, tensors_of, tile_of_values

# Beyond it, values are better made once for all rows.
MAX_ROWS = 64
# With fewer outputs, programs are too few for all multiprocessors of a large GPU. Q4_K on an H200, one row: gate_up of
# 31B 167 us, by way of memory 539, down 287, by way of memory 222.
MIN_OUTPUTS = 64 * 132
# Pairs of a row and an expert that are multiplied together.
MAX_GROUP = 16
# Outputs of a program, which a warpgroup of Hopper multiplies at once, and inputs that it takes at a time.
_BLOCK_OUT, _BLOCK_IN = 64, 128
_HOPPER = 9


def serves(num_rows: int, num_out: int) -> bool:
    return 0 < num_rows <= MAX_ROWS and num_out >= MIN_OUTPUTS


def is_one_chain(device: torch.device) -> bool:
    """Whether sums are one chain (`linear/chain.py`)."""
    return torch.cuda.get_device_capability(device)[0] == _HOPPER


def linear(x: Tensor, matrix: QuantizedMatrix) -> Tensor:
    """x [rows, inputs] @ values^T, in x's type. Columns lie as they are stored."""
    num_rows = x.shape[0]
    x = x if x.stride(1) == 1 else x.contiguous()
    output = torch.empty(num_rows, matrix.num_rows, dtype=x.dtype, device=x.device)
    any_format_kernel[(triton.cdiv(matrix.num_rows, _BLOCK_OUT),)](
        x, *tensors_of(matrix), output, x.stride(0), *strides_of(matrix), num_rows, matrix.num_rows,
        ROWS=max(16, triton.next_power_of_2(num_rows)),
        **_constants(matrix),
        **launch_options(x.device),
    )  # fmt: skip
    return output


def multiply_groups(source: Tensor, groups: Groups, matrices: QuantizedMatrix, num_chosen: int | None) -> Tensor:
    """What experts make of their pairs, of which a group has up to `MAX_GROUP`; as `moe.triton_groups` has it, but
    without the activation."""
    num_out = matrices.num_rows
    output = torch.empty(len(groups.order), num_out, dtype=source.dtype, device=source.device)
    flat = matrices.flat()
    any_experts_kernel[(triton.cdiv(num_out, _BLOCK_OUT), groups.num_groups)](
        source, *tensors_of(flat), output, source.stride(0), *strides_of(flat), groups.order, groups.table, num_out,
        NUM_CHOSEN=num_chosen or 1,
        IS_FIRST=num_chosen is not None,
        ROWS=MAX_GROUP,
        **_constants(flat),
        **launch_options(source.device),
    )  # fmt: skip
    return output


def _constants(matrix: QuantizedMatrix) -> dict[str, int]:
    return constants_of(matrix, _BLOCK_IN) | dict(BLOCK_OUT=_BLOCK_OUT, num_warps=4, num_stages=3)


@triton.jit
def sums_of_values(
    x_rows, is_row, matrix_row, codes, scales, coarse_scales, zeros, minimums, coarse_minimums,
    code_stride, scale_stride, coarse_stride,
    NUM_IN: tl.constexpr, GROUP: tl.constexpr, PER_COARSE: tl.constexpr, KIND: tl.constexpr, SCALES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """[outputs, rows] in float32. `x_rows`: where rows begin; `matrix_row`: [outputs, 1], those of the matrix."""
    totals = tl.zeros([BLOCK_OUT, ROWS], tl.float32)
    for start in range(0, NUM_IN, BLOCK_IN):
        value = tile_of_values(
            matrix_row, start, codes, scales, coarse_scales, zeros, minimums, coarse_minimums, code_stride,
            scale_stride, coarse_stride, NUM_IN, GROUP, PER_COARSE, KIND, SCALES, BLOCK_OUT, BLOCK_IN,
        )  # fmt: skip
        inputs = start + tl.arange(0, BLOCK_IN)
        # Where inputs end, x is zero, and so is the product: no value is infinite.
        is_there = is_row[None, :] & (inputs[:, None] < NUM_IN)
        x_tile = tl.load(x_rows[None, :] + inputs[:, None], mask=is_there, other=0.0)
        totals = tl.dot(value.to(x_tile.dtype), x_tile, totals, input_precision="ieee")
    return totals


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
    SCALES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    start_after_previous(IS_DEPENDENT)
    column = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    # Beyond the last output that one is read again, which needs no mask; the store drops the result.
    matrix_row = tl.minimum(column, num_out - 1).to(tl.int64)[:, None]
    rows = tl.arange(0, ROWS)
    is_row = rows < num_rows
    totals = sums_of_values(
        x + rows.to(tl.int64) * x_stride, is_row, matrix_row, codes, scales, coarse_scales, zeros, minimums,
        coarse_minimums, code_stride, scale_stride, coarse_stride,
        NUM_IN, GROUP, PER_COARSE, KIND, SCALES, ROWS, BLOCK_OUT, BLOCK_IN,
    )  # fmt: skip
    places = output + rows[:, None].to(tl.int64) * num_out + column[None, :]
    is_stored = is_row[:, None] & (column[None, :] < num_out)
    tl.store(places, tl.trans(totals).to(output.dtype.element_ty), mask=is_stored)


@triton.jit(do_not_specialize=["num_out"])
def any_experts_kernel(
    source,  # x, by row, for the first product; the hidden activations, in order of experts, for the second
    codes,
    scales,
    coarse_scales,
    zeros,
    minimums,
    coarse_minimums,
    output,  # in order of experts for the first product, else by pair
    source_stride,
    code_stride,
    scale_stride,
    coarse_stride,
    order,
    table,
    num_out,  # of an expert
    NUM_CHOSEN: tl.constexpr,
    IS_FIRST: tl.constexpr,  # of the two products
    NUM_IN: tl.constexpr,
    GROUP: tl.constexpr,
    PER_COARSE: tl.constexpr,
    KIND: tl.constexpr,
    SCALES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    start_after_previous(IS_DEPENDENT)
    group = table + tl.program_id(1) * 3
    expert, first, end = tl.load(group), tl.load(group + 1), tl.load(group + 2)
    if end == 0:
        return
    column = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    matrix_row = (expert.to(tl.int64) * num_out + tl.minimum(column, num_out - 1))[:, None]
    places = first + tl.arange(0, ROWS)
    is_row = places < end
    pairs = tl.load(order + places, mask=is_row, other=0)
    source_row = pairs // NUM_CHOSEN if IS_FIRST else places
    totals = sums_of_values(
        source + source_row.to(tl.int64) * source_stride, is_row, matrix_row, codes, scales, coarse_scales, zeros,
        minimums, coarse_minimums, code_stride, scale_stride, coarse_stride,
        NUM_IN, GROUP, PER_COARSE, KIND, SCALES, ROWS, BLOCK_OUT, BLOCK_IN,
    )  # fmt: skip
    target = places if IS_FIRST else pairs
    stored = output + target[:, None].to(tl.int64) * num_out + column[None, :]
    is_stored = is_row[:, None] & (column[None, :] < num_out)
    tl.store(stored, tl.trans(totals).to(output.dtype.element_ty), mask=is_stored)
