"""Brings matrices of shuffled 4-bit codes to bfloat16, for products of so many rows that bytes hardly count."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.quantized.int4.shuffled import BLOCK_IN, ShuffledInt4
from facet.kernels.quantized.shuffled_product import TILE_OUT
from facet.kernels.quantized.widen import value_of_e2m1, value_of_e4m3

_BLOCKS = 4  # of a program


def dequantize(matrix: ShuffledInt4, dtype: torch.dtype) -> Tensor:
    """[..., outputs, inputs]; of a gated matrix gates, then ups. Values are rounded to `dtype` once."""
    experts = matrix.codes.shape[:-3]
    values = torch.empty(*experts, matrix.num_rows, matrix.num_inputs, dtype=dtype, device=matrix.codes.device)
    _dequantize_kernel[(experts.numel() * matrix.num_tiles, triton.cdiv(matrix.num_blocks, _BLOCKS))](
        matrix.codes,
        matrix.scales if matrix.factors is None else matrix.scales.view(torch.uint8),
        matrix.codes if matrix.zeros is None else matrix.zeros,
        matrix.factors,
        matrix.coarse,
        values,
        matrix.num_tiles,
        matrix.num_blocks,
        matrix.num_inputs,
        HAS_ZEROS=matrix.zeros is not None,
        GROUPS=matrix.scales.shape[-2],
        IS_GATED=matrix.is_gated,
        BLOCKS=_BLOCKS,
        WORDS=BLOCK_IN // 8,
        OUTPUTS=TILE_OUT,
        num_warps=8,
    )
    return values


@triton.jit(do_not_specialize=["num_tiles", "num_blocks"])
def _dequantize_kernel(
    codes,
    scales,
    zeros,
    factors,  # of whole rows, of codes e2m1 alone
    coarse,  # scales and minimums, for two blocks; beside scales and minimums of uint8 alone
    values,
    num_tiles,  # of a matrix
    num_blocks,
    num_in,
    HAS_ZEROS: tl.constexpr,  # else 8
    GROUPS: tl.constexpr,  # of a block
    IS_GATED: tl.constexpr,
    BLOCKS: tl.constexpr,
    WORDS: tl.constexpr,  # of an output in a block
    OUTPUTS: tl.constexpr,
):
    tile = tl.program_id(0)
    half = tl.arange(0, OUTPUTS)[:, None, None] // 8
    member = tl.arange(0, OUTPUTS)[:, None, None] % 8
    word = tl.arange(0, BLOCKS * WORDS)[None, :, None]
    pair = tl.arange(0, 8)[None, None, :]
    block = tl.program_id(1) * BLOCKS + word // WORDS
    chunk, quarter = word % WORDS // 4, word % 4
    is_block = block < num_blocks
    first = (tile * num_blocks + block).to(tl.int64)
    eight = tl.load(codes + first * 256 + half * 128 + (member * 4 + quarter) * 4 + chunk, mask=is_block, other=0)
    if coarse is not None:
        scale_place = first * 128 + member * 16 + chunk * 4 + half * 2
    elif factors is None:
        scale_place = first * (16 * GROUPS) + member * (2 * GROUPS) + chunk * GROUPS // 4 * 2 + half
    else:
        scale_place = first * 128 + member * 16 + quarter // 2 * 8 + half * 4 + chunk
    scale = tl.load(scales + scale_place, mask=is_block, other=0.0)
    # Neighbours lie 16 bits apart.
    code = (eight >> (pair // 2 * 4 + pair % 2 * 16)) & 15
    column = block * (WORDS * 8) + word % WORDS * 8 + pair
    if IS_GATED:
        row = tile // num_tiles * (num_tiles * 16) + half * (num_tiles * 8) + tile % num_tiles * 8 + member
    else:
        row = tile * 16 + half * 8 + member
    if coarse is not None:
        per_tile = (num_blocks + 1) // 2
        coarse_place = (tile.to(tl.int64) * per_tile + block // 2) * 32 + member * 4 + half * 2
        minimum = tl.load(scales + scale_place + 1, mask=is_block, other=0).to(tl.float32)
        minimum *= tl.load(coarse + coarse_place + 1, mask=is_block, other=0.0).to(tl.float32)
        scale = scale.to(tl.float32) * tl.load(coarse + coarse_place, mask=is_block, other=0.0).to(tl.float32)
        # A code times its scale is exact: fused or not, the same value.
        result = code.to(tl.float32) * scale - minimum
    elif factors is None:
        zero = tl.load(zeros + scale_place, mask=is_block, other=0).to(tl.int32) if HAS_ZEROS else 8
        result = (code - zero).to(tl.float32) * scale.to(tl.float32)
    else:
        # The factor is that of values 2^7 times too small.
        factor = tl.load(factors + tile * 16 + half * 8 + member) * 0.0078125
        result = value_of_e2m1(code) * (value_of_e4m3(scale.to(tl.int32)) * factor)
    tl.store(values + row.to(tl.int64) * num_in + column, result.to(values.dtype.element_ty), mask=column < num_in)
