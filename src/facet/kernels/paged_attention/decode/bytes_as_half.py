"""Converts stored 8-bit numbers to float16 in the registers where a product uses them.

Every number of one byte is exact in float16, and two of them take one instruction or two. They are copied to shared
memory as they are stored, read from there in the order of an operand, and widened then: nothing goes back.
"""

import triton
import triton.language as tl

IN_INTERPRETER = tl.constexpr(triton.knobs.runtime.interpret)

# Dimensions that are loaded at a time, a line of memory: a thread then copies much of few keys, and has few addresses
# to compute.
SEGMENT = tl.constexpr(128)

# Four int8 to four float16: with its sign bit flipped an int8 x is x + 128, and as the low byte of 1024 it makes
# 1024 + 128 + x.
_INT8_TO_FLOAT16 = tl.constexpr("""{
    .reg .b32 shifted, low, high, bias;
    mov.b32 bias, 0x64806480;
    xor.b32 shifted, $2, 0x80808080;
    prmt.b32 low, shifted, 0x64646464, 0x4140;
    prmt.b32 high, shifted, 0x64646464, 0x4342;
    sub.rn.f16x2 $0, low, bias;
    sub.rn.f16x2 $1, high, bias;
}""")

# Instructions that make float16 of the first of the two numbers of each of two words, or of the second.
_FIRSTS_OF_INT8 = tl.constexpr("""{
    .reg .b32 shifted, wide, bias;
    mov.b32 bias, 0x64806480;
    xor.b32 shifted, $1, 0x80808080;
    prmt.b32 wide, shifted, 0x64646464, 0x4240;
    sub.rn.f16x2 $0, wide, bias;
}""")
_SECONDS_OF_INT8 = tl.constexpr("""{
    .reg .b32 shifted, wide, bias;
    mov.b32 bias, 0x64806480;
    xor.b32 shifted, $1, 0x80808080;
    prmt.b32 wide, shifted, 0x64646464, 0x4341;
    sub.rn.f16x2 $0, wide, bias;
}""")
_FIRSTS_OF_E4M3 = tl.constexpr("""{
    .reg .b32 sorted;
    .reg .b16 low, high;
    prmt.b32 sorted, $1, 0, 0x3120;
    mov.b32 {low, high}, sorted;
    cvt.rn.f16x2.e4m3x2 $0, low;
}""")
_SECONDS_OF_E4M3 = tl.constexpr("""{
    .reg .b32 sorted;
    .reg .b16 low, high;
    prmt.b32 sorted, $1, 0, 0x3120;
    mov.b32 {low, high}, sorted;
    cvt.rn.f16x2.e4m3x2 $0, high;
}""")
_FIRSTS_OF_E5M2 = tl.constexpr("prmt.b32 $0, $1, 0, 0x2404;")
_SECONDS_OF_E5M2 = tl.constexpr("prmt.b32 $0, $1, 0, 0x3414;")


@triton.jit
def _halves(words, ASSEMBLY: tl.constexpr):
    return tl.inline_asm_elementwise(ASSEMBLY, "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2)


@triton.jit
def even_and_odd(vectors, places, SIZE: tl.constexpr):
    """Stored numbers of one byte as float16, those of even and of odd dimensions apart: [SIZE / 2, keys] each.

    Read in words of two numbers, which shared memory transposes on the way out as it does numbers of two bytes. Single
    bytes it cannot.
    """
    pairs = tl.arange(0, SIZE // 2)
    if IN_INTERPRETER:
        even = tl.load(vectors + places[:, None] + 2 * pairs[None, :]).to(tl.float16)
        odd = tl.load(vectors + places[:, None] + 2 * pairs[None, :] + 1).to(tl.float16)
        return tl.trans(even), tl.trans(odd)
    words = vectors.to(tl.pointer_type(tl.int16), bitcast=True) + (places // 2)[None, :] + pairs[:, None]
    word = tl.load(words)
    if vectors.dtype.element_ty == tl.int8:
        return _halves(word, _FIRSTS_OF_INT8), _halves(word, _SECONDS_OF_INT8)
    if vectors.dtype.element_ty == tl.float8e4nv:
        return _halves(word, _FIRSTS_OF_E4M3), _halves(word, _SECONDS_OF_E4M3)
    return _halves(word, _FIRSTS_OF_E5M2), _halves(word, _SECONDS_OF_E5M2)


@triton.jit
def widened_to_half(stored):
    if stored.dtype == tl.int8 and not IN_INTERPRETER:
        return tl.inline_asm_elementwise(_INT8_TO_FLOAT16, "=r,=r,r", [stored], dtype=tl.float16, is_pure=True, pack=4)
    return stored.to(tl.float16)


@triton.jit
def put_together(even, odd, SIZE: tl.constexpr, BLOCK_M: tl.constexpr):
    return tl.join(even.trans(), odd.trans()).reshape(BLOCK_M, SIZE)
