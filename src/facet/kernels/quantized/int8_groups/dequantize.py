"""Brings matrices of shuffled 8-bit codes to bfloat16, for products of so many rows that bytes hardly count, and looks
up rows of tables in that order.

Values of products are those of `widen.py`, bit for bit; rows looked up are those of `QuantizedMatrix.values`.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.quantized.int8_groups.shuffled import BLOCK_IN, COARSE_IN, ShuffledInt8

_BLOCKS = 4  # of a program
_BLOCKS_OF_ROW = 16  # of one that looks up a row


def dequantize(matrix: ShuffledInt8, dtype: torch.dtype) -> Tensor:
    """[outputs, inputs]; of a gated matrix gates, then ups. Values are rounded to `dtype` once."""
    values = torch.empty(matrix.num_rows, matrix.num_inputs, dtype=dtype, device=matrix.codes.device)
    shuffled_kernel[(matrix.num_tiles, triton.cdiv(matrix.num_blocks, _BLOCKS))](
        *_tensors(matrix),
        values,
        matrix.num_tiles,
        matrix.num_blocks,
        matrix.num_inputs,
        IS_GATED=matrix.is_gated,
        BLOCKS=_BLOCKS,
        **_constants(matrix),
        num_warps=4,
    )
    return values


def look_up(ids: Tensor, matrix: ShuffledInt8) -> Tensor:
    """Rows of a table in float32, [ids, width]; ids past its end take row 0."""
    assert not matrix.is_gated, "a table has no gates"
    flat = ids.reshape(-1)
    rows = torch.empty(len(flat), matrix.num_inputs, dtype=torch.float32, device=matrix.codes.device)
    if len(flat) > 0:
        rows_kernel[(len(flat), triton.cdiv(matrix.num_blocks, _BLOCKS_OF_ROW))](
            flat,
            *_tensors(matrix),
            rows,
            matrix.num_rows,
            matrix.num_blocks,
            matrix.num_inputs,
            BLOCKS=_BLOCKS_OF_ROW,
            WORDS=BLOCK_IN // 4,
            **_constants(matrix),
            num_warps=4,
            enable_fp_fusion=False,  # a minimum is subtracted from a product that has been rounded
        )
    return rows.view(*ids.shape, matrix.num_inputs)


def _tensors(matrix: ShuffledInt8) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes, scales, and where there are coarse ones, the same words as numbers of 16 bits."""
    if matrix.num_levels == 0:
        return matrix.codes, matrix.scales.view(getattr(torch, matrix.format.scales.dtype)), None
    return matrix.codes, matrix.scales.view(torch.uint8), matrix.scales.view(torch.float16)


def _constants(matrix: ShuffledInt8) -> dict[str, Any]:
    return dict(
        GROUPS=matrix.num_words,
        BLOCKS_OF_SCALE=matrix.blocks_of_scale,
        COARSE_BLOCKS=COARSE_IN // BLOCK_IN,
        HAS_MINIMUMS=matrix.format.has_minimums,
        IS_NARROW=matrix.is_narrow,
    )


@triton.jit
def values_at(
    codes,
    scales,  # numbers of 16 bits; bytes where there are coarse ones
    coarse,
    tile,
    half,
    member,  # of its eight outputs
    block,
    chunk,
    quarter,  # of what a warp loads of an output in a chunk
    number,  # of a thread's two words
    place,  # of an input among those of a word
    num_blocks,
    IS_FUSED: tl.constexpr,  # a minimum is subtracted before a product is rounded
    GROUPS: tl.constexpr,  # words of scales of a block
    BLOCKS_OF_SCALE: tl.constexpr,  # that share them
    COARSE_BLOCKS: tl.constexpr,  # that share coarse ones
    HAS_MINIMUMS: tl.constexpr,  # else bytes are of groups of 16 inputs
    IS_NARROW: tl.constexpr,
):
    """The values of codes in float32."""
    is_block = block < num_blocks
    first = (tile * num_blocks + block).to(tl.int64) * 256
    code_place = first + chunk * 128 + (member * 4 + quarter) * 4 + half * 2 + number
    four = tl.load(codes + code_place, mask=is_block, other=0)
    # Bytes are of inputs 0, 2, 1, 3.
    octet = (four >> (place % 2 * 16 + place // 2 * 8)) & 255
    # Under the exponent of 2^23 a byte is that much more than it says. Instructions that convert take longer.
    MIDDLE: tl.constexpr = 64 if IS_NARROW else 128
    bits = octet | 0x4B000000 if IS_NARROW else (octet ^ 128) | 0x4B000000
    code = bits.to(tl.float32, bitcast=True) - (8388608.0 + MIDDLE)
    if coarse is None:
        scale_block = tile * tl.cdiv(num_blocks, BLOCKS_OF_SCALE) + block // BLOCKS_OF_SCALE
        scale_word = (scale_block.to(tl.int64) * 8 + member) * GROUPS + chunk * GROUPS // 2
        scale = tl.load(scales + scale_word * 2 + half, mask=is_block, other=0.0).to(tl.float32)
        value = code * scale
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
            less = tl.broadcast_to(-least, code.shape)
            value = tl.fma(code, scale, less) if IS_FUSED else code * scale + less
        else:
            fine = tl.load(scales + scale_word * 4 + number * 2 + half, mask=is_block, other=0).to(tl.float32)
            value = code * ((fine - 128.0) * rough)
    return value


@triton.jit(do_not_specialize=["num_tiles", "num_blocks"])
def shuffled_kernel(
    codes, scales, coarse, values, num_tiles, num_blocks, num_in,
    IS_GATED: tl.constexpr, BLOCKS: tl.constexpr, GROUPS: tl.constexpr, BLOCKS_OF_SCALE: tl.constexpr,
    COARSE_BLOCKS: tl.constexpr, HAS_MINIMUMS: tl.constexpr, IS_NARROW: tl.constexpr,
):  # fmt: skip
    """A thread loads words as they lie and stores what are neighbours: two words, and eight inputs; one, and four."""
    IN_SIXTEENS: tl.constexpr = coarse is not None and not HAS_MINIMUMS
    NUMBERS: tl.constexpr = 1 if IN_SIXTEENS else 2
    tile = tl.program_id(0)
    thread = tl.arange(0, BLOCKS * 64)[:, None, None]
    block = tl.program_id(1) * BLOCKS + thread // 64
    chunk, member, quarter = thread // 32 % 2, thread // 4 % 8, thread % 4
    place = tl.arange(0, 4)[None, None, :]
    for part in tl.static_range(4 // NUMBERS):
        half, first = part % 2, part // 2
        number = first + tl.arange(0, NUMBERS)[None, :, None]
        value = values_at(
            codes, scales, coarse, tile, half, member, block, chunk, quarter, number, place, num_blocks,
            True, GROUPS, BLOCKS_OF_SCALE, COARSE_BLOCKS, HAS_MINIMUMS, IS_NARROW,
        )  # fmt: skip
        value = tl.reshape(value.to(values.dtype.element_ty), (BLOCKS * 64, 1, 4 * NUMBERS))
        row = half * (num_tiles * 8) + tile * 8 + member if IS_GATED else tile * 16 + half * 8 + member
        column = block * 64 + chunk * 32 + first * 16 + quarter * (4 * NUMBERS)
        column += tl.arange(0, 4 * NUMBERS)[None, None, :]
        tl.store(values + row.to(tl.int64) * num_in + column, value, mask=column < num_in)


@triton.jit(do_not_specialize=["num_rows", "num_blocks"])
def rows_kernel(
    ids, codes, scales, coarse, rows, num_rows, num_blocks, num_in,
    BLOCKS: tl.constexpr, GROUPS: tl.constexpr, BLOCKS_OF_SCALE: tl.constexpr, COARSE_BLOCKS: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr, IS_NARROW: tl.constexpr, WORDS: tl.constexpr,  # of an output in a block
):  # fmt: skip
    index = tl.program_id(0)
    known = tl.load(ids + index)
    known = tl.where(known < num_rows, known, 0).to(tl.int32)
    word = tl.arange(0, BLOCKS * WORDS)[:, None]
    place = tl.arange(0, 4)[None, :]
    block = tl.program_id(1) * BLOCKS + word // WORDS
    IN_SIXTEENS: tl.constexpr = coarse is not None and not HAS_MINIMUMS
    chunk = word % WORDS // 8
    if IN_SIXTEENS:
        quarter, number = word % 4, word % 8 // 4
    else:
        quarter, number = word % 8 // 2, word % 2
    value = values_at(
        codes, scales, coarse, known // 16, known % 16 // 8, known % 8, block, chunk, quarter, number, place,
        num_blocks, False, GROUPS, BLOCKS_OF_SCALE, COARSE_BLOCKS, HAS_MINIMUMS, IS_NARROW,
    )  # fmt: skip
    column = block * (WORDS * 4) + word % WORDS * 4 + place
    tl.store(rows + index.to(tl.int64) * num_in + column, value, mask=column < num_in)
