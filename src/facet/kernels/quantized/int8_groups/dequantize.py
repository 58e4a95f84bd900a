"""Brings matrices of shuffled 8-bit codes to bfloat16, for products of so many rows that bytes hardly count.

Values are those of `widen.py`, bit for bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.quantized.int8_groups.shuffled import BLOCK_IN, COARSE_IN, TILE_OUT, ShuffledInt8

_BLOCKS = 4  # of a program


def dequantize(matrix: ShuffledInt8, dtype: torch.dtype) -> Tensor:
    """[outputs, inputs]; of a gated matrix gates, then ups. Values are rounded to `dtype` once."""
    values = torch.empty(matrix.num_rows, matrix.num_inputs, dtype=dtype, device=matrix.codes.device)
    has_coarse = matrix.num_levels > 0
    scale_dtype = torch.uint8 if has_coarse else getattr(torch, matrix.format.scales.dtype)
    shuffled_kernel[(matrix.num_tiles, triton.cdiv(matrix.num_blocks, _BLOCKS))](
        matrix.codes,
        matrix.scales.view(scale_dtype),
        matrix.scales.view(torch.float16) if has_coarse else None,
        values,
        matrix.num_tiles,
        matrix.num_blocks,
        matrix.num_inputs,
        GROUPS=matrix.num_words,
        BLOCKS_OF_SCALE=matrix.blocks_of_scale,
        COARSE_BLOCKS=COARSE_IN // BLOCK_IN,
        HAS_MINIMUMS=matrix.format.has_minimums,
        IS_NARROW=matrix.is_narrow,
        IS_GATED=matrix.is_gated,
        BLOCKS=_BLOCKS,
        WORDS=BLOCK_IN // 4,
        OUTPUTS=TILE_OUT,
        num_warps=8,
    )
    return values


@triton.jit(do_not_specialize=["num_tiles", "num_blocks"])
def shuffled_kernel(
    codes,
    scales,  # numbers of 16 bits; bytes where there are coarse ones
    coarse,  # the same words as numbers of 16 bits
    values,
    num_tiles,
    num_blocks,
    num_in,
    GROUPS: tl.constexpr,  # words of scales of a block
    BLOCKS_OF_SCALE: tl.constexpr,  # that share them
    COARSE_BLOCKS: tl.constexpr,  # that share coarse ones
    HAS_MINIMUMS: tl.constexpr,  # else bytes are of groups of 16 inputs
    IS_NARROW: tl.constexpr,
    IS_GATED: tl.constexpr,
    BLOCKS: tl.constexpr,
    WORDS: tl.constexpr,  # of an output in a block
    OUTPUTS: tl.constexpr,
):
    tile = tl.program_id(0)
    half = tl.arange(0, OUTPUTS)[:, None, None] // 8
    member = tl.arange(0, OUTPUTS)[:, None, None] % 8
    word = tl.arange(0, BLOCKS * WORDS)[None, :, None]
    place = tl.arange(0, 4)[None, None, :]  # of an input among those of a word
    block = tl.program_id(1) * BLOCKS + word // WORDS
    chunk = word % WORDS // 8
    is_block = block < num_blocks
    IN_SIXTEENS: tl.constexpr = coarse is not None and not HAS_MINIMUMS
    if IN_SIXTEENS:
        quarter, number = word % 4, word % 8 // 4
    else:
        quarter, number = word % 8 // 2, word % 2
    first = (tile * num_blocks + block).to(tl.int64) * 256
    code_place = first + chunk * 128 + (member * 4 + quarter) * 4 + half * 2 + number
    four = tl.load(codes + code_place, mask=is_block, other=0)
    # Bytes are of inputs 0, 2, 1, 3.
    octet = (four >> (place % 2 * 16 + place // 2 * 8)) & 255
    code = octet - 64 if IS_NARROW else (octet ^ 128) - 128
    if coarse is None:
        scale_block = tile * tl.cdiv(num_blocks, BLOCKS_OF_SCALE) + block // BLOCKS_OF_SCALE
        scale_word = (scale_block.to(tl.int64) * 8 + member) * GROUPS + chunk * GROUPS // 2
        scale = tl.load(scales + scale_word * 2 + half, mask=is_block, other=0.0).to(tl.float32)
        value = code.to(tl.float32) * scale
    else:
        LEVELS: tl.constexpr = 2 if HAS_MINIMUMS else 1
        coarse_block = tile * (num_blocks // COARSE_BLOCKS) + block // COARSE_BLOCKS
        coarse_word = coarse_block.to(tl.int64) * (64 + 8 * LEVELS)
        scale_word = coarse_word + block % COARSE_BLOCKS * 16 + member * 2 + chunk
        coarse_place = (coarse_word + 64 + member * LEVELS) * 2 + half
        rough = tl.load(coarse + coarse_place, mask=is_block, other=0.0).to(tl.float32)
        if HAS_MINIMUMS:
            fine = tl.load(scales + scale_word * 4 + half, mask=is_block, other=0).to(tl.float32)
            least = tl.load(scales + scale_word * 4 + 2 + half, mask=is_block, other=0).to(tl.float32)
            least *= tl.load(coarse + coarse_place + 2, mask=is_block, other=0.0).to(tl.float32)
            scale, code = tl.broadcast(fine * rough, code)
            value = tl.fma(code.to(tl.float32), scale, tl.broadcast_to(-least, code.shape))
        else:
            fine = tl.load(scales + scale_word * 4 + number * 2 + half, mask=is_block, other=0).to(tl.float32)
            value = code.to(tl.float32) * ((fine - 128.0) * rough)
    column = block * (WORDS * 4) + word % WORDS * 4 + place
    row = half * (num_tiles * 8) + tile * 8 + member if IS_GATED else tile * 16 + half * 8 + member
    there = column < num_in
    tl.store(values + row.to(tl.int64) * num_in + column, value.to(values.dtype.element_ty), mask=there)
