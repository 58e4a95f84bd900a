"""What words of 8-bit codes and their scales become: pairs of bfloat16 numbers, by short sequences of PTX."""

from facet.kernels.gluon_names import gl, gluon


def _unpacking(*, is_narrow: bool) -> str:
    """Instructions that make four registers of two bfloat16 numbers of two words of four codes.

    Seven bits under the exponent of 64 are 64 + u / 2; twice that plus an offset is exact. Of narrow codes the seven
    are the code plus 64. Of others the eighth bit is worth -128, and it is also the bit by which the offsets -128 and
    -256 differ. Times one, the compiler would choose another instruction, which takes longer (`int4/codes.py`).
    """
    lines = ["mov.b32 two, 0x40004000;", "mov.b32 offset, 0xc340c340;"]
    for pair in range(4):
        word = f"${4 + pair // 2}"
        if pair % 2:
            lines.append(f"shr.u32 shifted, {word}, 8;")
            word = "shifted"
        lines.append(f"lop3.b32 number, {word}, 0x007f007f, 0x42804280, 0xea;")
        if not is_narrow:
            lines.append(f"lop3.b32 offset, {word}, 0x00800080, 0xc300c300, 0xea;")
        lines.append(f"fma.rn.bf16x2 ${pair}, number, two, offset;")
    return f"{{ .reg .b32 two, offset, shifted, number; {' '.join(lines)} }}"


_UNPACK, _UNPACK_NARROW = (gl.constexpr(_unpacking(is_narrow=is_narrow)) for is_narrow in (False, True))


@gluon.jit
def unpack_bytes(first, second, IS_NARROW: gl.constexpr):
    """Four words of two bfloat16 numbers, from two of four codes each, in which neighbours lie 16 bits apart."""
    ASM: gl.constexpr = _UNPACK_NARROW if IS_NARROW else _UNPACK
    return gl.inline_asm_elementwise(
        ASM,
        "=&r,=&r,=&r,=&r,r,r",
        [first, second],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )


def _dequantizing(*, is_narrow: bool) -> str:
    """Instructions that make two registers of two bfloat16 values of a word of four codes, in which neighbours lie 16
    bits apart. Under the exponent of 128, seven bits are their number plus that; eight bits in the middle of the
    mantissa are, under the exponent of 32768. $3, $5 and $7 are $2, $4 and $6 again."""
    lines, word = [], "$2"
    if not is_narrow:
        lines, word = ["xor.b32 codes, $2, 0x80808080;"], "codes"
    for pair in range(2):
        for side, number in enumerate(("even", "odd")):
            octet = pair + 2 * side
            bytes_of = (f"0x43000000, {0x7044 + 0x100 * octet}", f"0x47000000, {0x7404 + 0x10 * octet}")
            lines.append(f"prmt.b32 {number}, {word}, {bytes_of[not is_narrow]};")
            lines.append(f"fma.rn.f32 {number}, {number}, $4, $6;")
        lines.append(f"cvt.rn.bf16x2.f32 ${pair}, odd, even;")
    return f"{{ .reg .b32 codes, even, odd; {' '.join(lines)} }}"


_DEQUANTIZE, _DEQUANTIZE_NARROW = (gl.constexpr(_dequantizing(is_narrow=is_narrow)) for is_narrow in (False, True))


@gluon.jit
def dequantize_bytes(word, scale, offset, IS_NARROW: gl.constexpr):
    """The values of each word's four codes in bfloat16, [.., sides, pairs]: stored codes plus 128, of codes that are
    not narrow plus 128 + 32768, times the scale, plus the offset. That is rounded once."""
    ASM: gl.constexpr = _DEQUANTIZE_NARROW if IS_NARROW else _DEQUANTIZE
    pairs = gl.inline_asm_elementwise(
        ASM,
        "=&r,=&r,r,r,f,f,f,f",
        [gl.join(word, word), gl.join(scale, scale), gl.join(offset, offset)],
        dtype=(gl.bfloat16, gl.bfloat16),
        is_pure=True,
        pack=2,
    )
    return gl.join(pairs[0], pairs[1])
