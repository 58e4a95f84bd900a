"""One row times a matrix of eight bits whose inputs are not rounded, in Triton: bound by reading the codes once.

Sums are plain float32 arithmetic, as in `linear/triton.py`: threads lie side by side along the inputs, each with 16
codes of a row of the matrix, which it widens and sums before it touches its running sums.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.quantized.eight_bits.config import Config
from facet.kernels.quantized.matrix import QuantizedMatrix

# Codes of a 16-byte load.
VECTOR = tl.constexpr(16)


def linear(x: Tensor, matrix: QuantizedMatrix, config: Config) -> Tensor:
    (num_rows, num_in), num_out = x.shape, matrix.num_rows
    codes, scales = matrix.codes, matrix.scales
    assert num_rows == 1, "of several rows, tensor cores make the sums"
    assert codes.stride(1) == 1, "the codes of a row are contiguous"
    output = torch.empty(1, num_out, dtype=x.dtype, device=codes.device)
    widened_row_kernel[(triton.cdiv(num_out, config.block_out),)](
        x.contiguous(),
        codes,
        scales,
        output,
        codes.stride(0),
        scales.stride(0),
        num_out,
        NUM_IN=num_in,
        BLOCK_OUT=config.block_out,
        BLOCK_IN=config.block_in,
        num_warps=config.num_warps,
        **launch_options(codes.device),
    )
    return output


@triton.jit
def load_codes(code_rows, places, is_live):
    """[BLOCK_OUT, BLOCK_IN / VECTOR, VECTOR]. Codes are read once: they should not push others out."""
    pointers = code_rows[:, None, None] + places[None, :, :]
    return tl.load(pointers, mask=is_live[None, :, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def widened_row_kernel(
    x,
    codes,
    scales,
    output,
    code_stride,
    scale_stride,
    num_out,
    NUM_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    columns = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    # Beyond the last output that one is read again, which needs no mask; the store drops the result.
    matrix_row = tl.minimum(columns, num_out - 1).to(tl.int64)
    code_rows = codes + matrix_row * code_stride
    factors = tl.load(scales + matrix_row * scale_stride).to(tl.float32)
    first = tl.arange(0, BLOCK_IN // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    # The first codes are on their way while x is still being computed.
    tile = load_codes(code_rows, first, first < NUM_IN)
    wait_for_previous(IS_DEPENDENT)
    totals = tl.zeros([BLOCK_OUT, BLOCK_IN // VECTOR], tl.float32)
    for start in range(0, NUM_IN, BLOCK_IN):
        places = start + first
        x_tile = tl.load(x + places, mask=places < NUM_IN, other=0.0).to(tl.float32)
        following = places + BLOCK_IN
        next_tile = load_codes(code_rows, following, following < NUM_IN)
        totals += tl.sum(tile.to(tl.float32) * x_tile[None, :, :], 2)
        tile = next_tile
    result = tl.sum(totals, 1) * factors
    tl.store(output + columns, result.to(output.dtype.element_ty), mask=columns < num_out)
