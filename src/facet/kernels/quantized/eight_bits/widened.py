"""One row times a matrix of eight bits whose inputs are not rounded, in Triton: bound by reading the codes once.

Sums are plain float32 arithmetic, as in `linear/triton.py`: threads lie side by side along the inputs. Codes are loaded
in words of four, and stay words until they are multiplied: bytes the compiler takes apart and puts together again on
their way from one turn of the loop to the next. A turn with four outputs of int8 has 325 instructions and not 411, of
which 64 waited for one of few converters; of fp8 292 and not 464.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.quantized.eight_bits.config import Config
from facet.kernels.quantized.matrix import QuantizedMatrix

IN_INTERPRETER = tl.constexpr(triton.knobs.runtime.interpret)

# Four int8 to four float32: with its sign bit flipped an int8 x is x + 128, and as the lowest byte of 2^23 it makes
# 2^23 + 128 + x.
_INT8_TO_FLOAT32 = tl.constexpr("""{
    .reg .b32 shifted;
    xor.b32 shifted, $4, 0x80808080;
    prmt.b32 $0, shifted, 0x4B000000, 0x7440;
    prmt.b32 $1, shifted, 0x4B000000, 0x7441;
    prmt.b32 $2, shifted, 0x4B000000, 0x7442;
    prmt.b32 $3, shifted, 0x4B000000, 0x7443;
    sub.rn.f32 $0, $0, 0f4B000080;
    sub.rn.f32 $1, $1, 0f4B000080;
    sub.rn.f32 $2, $2, 0f4B000080;
    sub.rn.f32 $3, $3, 0f4B000080;
}""")
_E4M3_TO_FLOAT32 = tl.constexpr("""{
    .reg .b16 low, high, a, b, c, d;
    .reg .b32 first, second;
    mov.b32 {low, high}, $4;
    cvt.rn.f16x2.e4m3x2 first, low;
    cvt.rn.f16x2.e4m3x2 second, high;
    mov.b32 {a, b}, first;
    mov.b32 {c, d}, second;
    cvt.f32.f16 $0, a;
    cvt.f32.f16 $1, b;
    cvt.f32.f16 $2, c;
    cvt.f32.f16 $3, d;
}""")


def linear(x: Tensor, matrix: QuantizedMatrix, config: Config) -> Tensor:
    (num_rows, num_in), num_out = x.shape, matrix.num_rows
    codes, scales = matrix.codes, matrix.scales
    assert num_rows == 1, "of several rows, tensor cores make the sums"
    assert codes.stride(1) == 1, "the codes of a row are contiguous"
    assert codes.stride(0) % 4 == num_in % 4 == 0, "rows are whole words"
    x = x.contiguous()
    if x.data_ptr() % 8 != 0:  # inputs are loaded four at a time
        x = x.clone()
    output = torch.empty(1, num_out, dtype=x.dtype, device=codes.device)
    widened_row_kernel[(triton.cdiv(num_out, config.block_out),)](
        x,
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
def load_words(code_rows, word, NUM_IN: tl.constexpr):
    """[BLOCK_OUT, BLOCK_IN / 4]. Codes are read once: they should not push others out."""
    words = code_rows.to(tl.pointer_type(tl.int32), bitcast=True)[:, None] + word[None, :]
    return tl.load(words, mask=(word < NUM_IN // 4)[None, :], other=0, eviction_policy="evict_first")


@triton.jit
def four_of(words, CODES: tl.constexpr):
    """The codes of each word in float32, exactly: the first of all words, the second, the third, the fourth."""
    if IN_INTERPRETER:
        return one_of(words, 0, CODES), one_of(words, 1, CODES), one_of(words, 2, CODES), one_of(words, 3, CODES)
    else:
        ASSEMBLY: tl.constexpr = _INT8_TO_FLOAT32 if tl.int8 == CODES else _E4M3_TO_FLOAT32
        FLOATS: tl.constexpr = (tl.float32, tl.float32, tl.float32, tl.float32)
        return tl.inline_asm_elementwise(ASSEMBLY, "=r,=r,=r,=r,r", [words], dtype=FLOATS, is_pure=True, pack=1)


@triton.jit
def one_of(words, PLACE: tl.constexpr, DTYPE: tl.constexpr):
    """The number at a place in each word, in float32."""
    bits = words >> (PLACE * DTYPE.primitive_bitwidth)
    if DTYPE.primitive_bitwidth == 16:
        return bits.to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
    else:
        return bits.to(tl.int8).to(DTYPE, bitcast=True).to(tl.float32)


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
    CODES: tl.constexpr = codes.dtype.element_ty
    INPUTS: tl.constexpr = x.dtype.element_ty
    columns = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    # Beyond the last output that one is read again, which needs no mask; the store drops the result.
    matrix_row = tl.minimum(columns, num_out - 1).to(tl.int64)
    code_rows = codes + matrix_row * code_stride
    factors = tl.load(scales + matrix_row * scale_stride).to(tl.float32)
    word = tl.arange(0, BLOCK_IN // 4)
    # The first codes are on their way while x is still being computed.
    words = load_words(code_rows, word, NUM_IN)
    wait_for_previous(IS_DEPENDENT)
    fours = x.to(tl.pointer_type(tl.int64), bitcast=True)
    totals = tl.zeros([BLOCK_OUT, BLOCK_IN // 4], tl.float32)
    for start in range(0, NUM_IN // 4, BLOCK_IN // 4):
        inputs = tl.load(fours + start + word, mask=start + word < NUM_IN // 4, other=0)[None, :]
        following = load_words(code_rows, start + BLOCK_IN // 4 + word, NUM_IN)
        first, second, third, fourth = four_of(words, CODES)
        totals += first * one_of(inputs, 0, INPUTS)
        totals += second * one_of(inputs, 1, INPUTS)
        totals += third * one_of(inputs, 2, INPUTS)
        totals += fourth * one_of(inputs, 3, INPUTS)
        words = following
    result = tl.sum(totals, 1) * factors
    tl.store(output + columns, result.to(output.dtype.element_ty), mask=columns < num_out)
