"""What words of 4-bit codes and their scales become: pairs of bfloat16 numbers, by short sequences of PTX.

Gluon cannot say that two such numbers share a register. A tensor's element is what one thread holds.
"""

import struct
from collections.abc import Sequence

from facet.kernels.gluon_names import gl, gluon


@gluon.jit
def offset_of(zero):
    """Two bfloat16 numbers -128 - zero in a word: what `unpack_codes` adds."""
    return (zero * 0x00010001) | -1023360256  # 0xC300C300


def unpacking(pairs: Sequence[str], word: str, offset: str) -> str:
    """Instructions that make four registers of two bfloat16 numbers u - zero of a word of eight codes u, where pair i
    has bits from 4 i and 16 + 4 i on. A code under the exponent of 64 is 64 + u / 2; twice that plus the offset is
    exact. Times one, the compiler would choose another instruction, HADD2: kernels that had it took 8.7 ms for a token
    of 31B on an H200, those before them 7.5.
    """
    lines = ["mov.b32 two, 0x40004000;"]
    for place, pair in enumerate(pairs):
        if place > 0:
            lines.append(f"shr.u32 shifted, {word}, {4 * place};")
        lines.append(f"lop3.b32 {pair}, {'shifted' if place > 0 else word}, 0x000f000f, 0x42804280, 0xea;")
    lines += [f"fma.rn.bf16x2 {pair}, {pair}, two, {offset};" for pair in pairs]
    return "\n".join(lines)


def raising(pairs: Sequence[str], word: str) -> str:
    """Like `unpacking`, but makes numbers 128 + u, which spares the instructions that take 128 away."""
    lines = []
    for place, pair in enumerate(pairs):
        if place > 0:
            lines.append(f"shr.u32 shifted, {word}, {4 * place};")
        lines.append(f"lop3.b32 {pair}, {'shifted' if place > 0 else word}, 0x000f000f, 0x43004300, 0xea;")
    return "\n".join(lines)


_RESULTS, _PAIRS = ("$0", "$1", "$2", "$3"), ("pair0", "pair1", "pair2", "pair3")
_UNPACK = gl.constexpr(
    f"""
    {{
        .reg .b32 two, shifted;
        {unpacking(_RESULTS, "$4", "$5")}
    }}
    """
)


@gluon.jit
def unpack_codes(word, offset):
    """Four words of two bfloat16 numbers u - zero, from one of eight codes u; `offset` is of `offset_of`."""
    return gl.inline_asm_elementwise(
        _UNPACK,
        "=&r,=&r,=&r,=&r,r,r",
        [word, offset],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )


def _unpacking_fp4(pairs: Sequence[str], word: str) -> str:
    """Instructions that make four registers of two bfloat16 numbers of a word of eight codes e2m1, which lie as above.
    The three bits of a size become the last two of an exponent and the first of a mantissa: numbers 2^126 times too
    small, those of a half among them, which has no exponent in either format."""
    lines = []
    for place, pair in enumerate(pairs):
        up = 6 - 4 * place
        lines.append(f"{'shl.b32' if up > 0 else 'shr.u32'} shifted, {word}, {abs(up)};")
        lines.append("and.b32 size, shifted, 0x01c001c0;")
        lines.append(f"shl.b32 shifted, {word}, {12 - 4 * place};")
        lines.append(f"lop3.b32 {pair}, shifted, 0x80008000, size, 0xea;")
    return "\n".join(lines)


def _scaling_up(scale: str, word: str) -> str:
    """Instructions that make two bfloat16 numbers 2^239 times as large: from 2^120 times too small to 2^119 times too
    large. Nothing is added, not even to a zero."""
    return f"""
        mov.b32 nothing, 0x80008000;
        mov.b32 factor, 0x7b807b80;
        fma.rn.bf16x2 {scale}, {word}, factor, nothing;
        mov.b32 factor, 0x7b007b00;
        fma.rn.bf16x2 {scale}, {scale}, factor, nothing;
    """


_SMALL_SCALES = gl.constexpr(
    f"""
    {{
        .reg .b32 nothing, factor, pair;
        {_scaling_up("pair", "$2")}
        prmt.b32 $0, pair, pair, 0x1010;
        prmt.b32 $1, pair, pair, 0x3232;
    }}
    """
)
# Products of numbers this far apart are exact, and neither overflow nor underflow.
_VALUES_OF_FP4 = gl.constexpr(
    f"""
    {{
        .reg .b32 nothing, shifted, size;
        mov.b32 nothing, 0x80008000;
        {_unpacking_fp4(_RESULTS, "$4")}
        {"".join(f"fma.rn.bf16x2 {result}, {result}, $5, nothing;" for result in _RESULTS)}
    }}
    """
)


@gluon.jit
def unpack_small_scales(word):
    """Two words of a scale each, twice, in bfloat16 and 2^119 times too large, of a word of two scales e4m3: the lower
    from bit 4 on and the upper from bit 20 on, which are bfloat16 numbers 2^120 times too small."""
    return gl.inline_asm_elementwise(
        _SMALL_SCALES, "=&r,=&r,r", [word], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )


@gluon.jit
def values_of_fp4(word, scale):
    """Four words of two bfloat16 numbers, from one of eight codes e2m1, times a scale of `unpack_small_scales`: exact,
    and 2^7 times too small."""
    return gl.inline_asm_elementwise(
        _VALUES_OF_FP4,
        "=&r,=&r,=&r,=&r,r,r",
        [word, scale],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )


def _scale_of(half: int, *, is_bfloat16: bool) -> str:
    """Instructions that make two equal bfloat16 numbers of one of the two scales in $6; of a float16 one also two of
    what that leaves of it, which has three bits at most."""
    if is_bfloat16:
        return f"prmt.b32 scale, $6, 0, {(0x1010, 0x3232)[half]};"
    return f"""
        mov.b32 {{half0, half1}}, $6;
        cvt.f32.f16 whole, half{half};
        cvt.rn.bf16x2.f32 scale, whole, whole;
        shl.b32 rounded, scale, 16;
        sub.f32 whole, whole, rounded;
        cvt.rn.bf16x2.f32 rest, whole, whole;
    """


def _dequantizing(half: int, *, is_bfloat16: bool) -> str:
    """Instructions that make values of codes. Two elements share a register: $5, $7 and $9 are $4, $6 and $8 again. A
    code times the rest of a scale is exact, so that values are rounded once."""
    lines = [unpacking(_PAIRS, "$4", "$8"), _scale_of(half, is_bfloat16=is_bfloat16)]
    for pair, result in zip(_PAIRS, _RESULTS, strict=True):
        if is_bfloat16:
            lines.append(f"mul.rn.bf16x2 {result}, {pair}, scale;")
        else:
            lines.append(f"mul.rn.bf16x2 shifted, {pair}, rest;")
            lines.append(f"fma.rn.bf16x2 {result}, {pair}, scale, shifted;")
    registers = ".reg .b32 two, shifted, scale, rest, pair<4>; .reg .b16 half<2>; .reg .f32 whole, rounded;"
    return f"{{ {registers} {' '.join(lines)} }}"


_DEQUANTIZE = {
    (half, is_bfloat16): _dequantizing(half, is_bfloat16=is_bfloat16)
    for half in (0, 1)
    for is_bfloat16 in (False, True)
}
# Of pairs 128 + u: the lower one of them alone, and both for the upper one, beyond whose last bit lie 0x4300 and the
# lower code. What that is in the middle goes to the offset, and 2^-13 of a scale are left.
_REST_OF_PAIR = -(0x4300 + 7.5) / 2**16
_DEQUANTIZE_LESS_MINIMUMS = gl.constexpr(
    f"""
    {{
        .reg .b32 shifted, pair<4>;
        .reg .f32 even, odd, offset;
        {raising(_PAIRS, "$4")}
        fma.rn.f32 offset, $6, 0f{struct.pack(">f", _REST_OF_PAIR).hex().upper()}, $8;
        {
        "".join(
            f"shl.b32 shifted, {pair}, 16; fma.rn.f32 even, shifted, $6, $8; fma.rn.f32 odd, {pair}, $6, offset; "
            f"cvt.rn.bf16x2.f32 {result}, odd, even; "
            for pair, result in zip(_PAIRS, _RESULTS, strict=True)
        )
    }
    }}
    """
)
# Of two elements each, as above: $5 and $7 are $4 and $6 again.
_DEQUANTIZE_FP4 = gl.constexpr(
    f"""
    {{
        .reg .b32 nothing, factor, scale, shifted, size;
        {_scaling_up("scale", "$6")}
        {_unpacking_fp4(_RESULTS, "$4")}
        {"".join(f"fma.rn.bf16x2 {result}, {result}, scale, nothing;" for result in _RESULTS)}
    }}
    """
)


@gluon.constexpr_function
def _dequantization(half, is_bfloat16):
    return _DEQUANTIZE[int(half), bool(is_bfloat16)]


@gluon.jit
def dequantize_codes(word, scales, offset, HALF: gl.constexpr, DTYPE: gl.constexpr):
    """The values of each word's eight codes in bfloat16, [.., sides, halves of a product's inputs, products].

    `scales` are words of those of the first half's output and of the second's; `offset` is of `offset_of`.
    """
    ASM: gl.constexpr = _dequantization(HALF, gl.bfloat16 == DTYPE)
    return _values(ASM, "=&r,=&r,=&r,=&r,r,r,r,r,r,r", [_twice(word), _twice(scales), _twice(offset)])


@gluon.jit
def dequantize_less_minimums(word, scale, offset):
    """Like `dequantize_codes`: codes plus 128, times a float32 scale, plus an offset."""
    inputs = [_twice(word), _twice(scale), _twice(offset)]
    return _values(_DEQUANTIZE_LESS_MINIMUMS, "=&r,=&r,=&r,=&r,r,r,f,f,f,f", inputs)


@gluon.jit
def dequantize_fp4(word, scale):
    """Like `dequantize_codes`, for codes e2m1. `scale`: the bits of an e4m3 number. The values are exact, and 2^7 times
    too small."""
    return _values(_DEQUANTIZE_FP4, "=&r,=&r,=&r,=&r,r,r,r,r", [_twice(word), _twice(scale * 0x00100010)])


@gluon.jit
def _twice(numbers):
    return gl.join(numbers, numbers)


@gluon.jit
def _values(ASM: gl.constexpr, REGISTERS: gl.constexpr, inputs):
    """Four results of two elements each, which share a register."""
    pairs = gl.inline_asm_elementwise(
        ASM,
        REGISTERS,
        inputs,
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16),
        is_pure=True,
        pack=2,
    )
    return gl.join(gl.join(pairs[0], pairs[1]), gl.join(pairs[2], pairs[3]))
