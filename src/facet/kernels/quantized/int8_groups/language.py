"""The names of Gluon that the kernel uses, and the short sequences of instructions that it is made of, in PTX.

Those that matrices of 4-bit codes have too come from there (`int4/language.py`).
"""

from collections.abc import Sequence

from facet.kernels.dependent_launch import let_next_start, wait_for_previous
from facet.kernels.gluon_names import gl, gluon
from facet.kernels.quantized.int4.language import add_products, stay_in_order, unpack_scales

__all__ = [
    "add_less_minimums",
    "add_products",
    "add_sixteens",
    "gl",
    "gluon",
    "let_next_start",
    "scales_of_bytes",
    "stay_in_order",
    "sums_of_inputs",
    "unpack_bytes",
    "unpack_scales",
    "wait_for_previous",
]


def _unpacking(*, is_narrow: bool) -> str:
    """Instructions that make four registers of two bfloat16 numbers of two words of four codes.

    Seven bits under the exponent of 64 are 64 + u / 2; twice that plus an offset is exact. Of narrow codes the seven
    are the code plus 64. Of others the eighth bit is worth -128, and it is also the bit by which the offsets -128 and
    -256 differ. Times one, the compiler would choose another instruction, which takes longer (`int4/language.py`).
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


# A byte in the middle of the mantissa, under the exponent of 32768: its number plus that.
_SCALES_OF_BYTES = gl.constexpr(
    "{ .reg .b32 number; "
    + " ".join(
        f"prmt.b32 number, $4, 0x47, {0x4505 + 16 * i}; fma.rn.f32 ${i}, number, ${5 + i}, ${9 + i};" for i in range(4)
    )
    + " }"
)


@gluon.jit
def scales_of_bytes(word, coarse, MIDDLE: gl.constexpr):
    """The four scales of a word, (byte - MIDDLE) * coarse, in float32 and exact: both factors are of eleven bits or
    fewer, and so are the offsets."""
    OFFSET: gl.constexpr = -32768.0 - MIDDLE
    return gl.inline_asm_elementwise(
        _SCALES_OF_BYTES,
        "=&f,=&f,=&f,=&f,r,f,f,f,f,f,f,f,f",
        [
            word, coarse[0], coarse[1], coarse[2], coarse[3],
            coarse[0] * OFFSET, coarse[1] * OFFSET, coarse[2] * OFFSET, coarse[3] * OFFSET,
        ],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )  # fmt: skip


def _product(parts: Sequence[str], codes: Sequence[str], x: Sequence[str], added: Sequence[str]) -> str:
    """16 outputs x 16 inputs by 16 inputs x 8 rows."""
    operands = ", ".join(f"{{{', '.join(names)}}}" for names in (parts, codes, x, added))
    return f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {operands};"


_PARTS, _ZEROS, _ONES = ("part0", "part1", "part2", "part3"), ("zero",) * 4, ("ones",) * 4
# Of the first 16 inputs and of the last, behind four results and four sums.
_CODES, _X = (("$8", "$12", "$9", "$13"), ("$10", "$14", "$11", "$15")), (("$16", "$17"), ("$18", "$19"))
_ADD_SIXTEENS = gl.constexpr(
    f"""
    {{
        .reg .f32 zero, part<4>, sum<4>;
        mov.f32 zero, 0f00000000;
        {_product(_PARTS, _CODES[0], _X[0], _ZEROS)}
        {"".join(f"fma.rn.f32 sum{i}, part{i}, ${20 + i // 2}, ${4 + i};" for i in range(4))}
        {_product(_PARTS, _CODES[1], _X[1], _ZEROS)}
        {"".join(f"fma.rn.f32 ${i}, part{i}, ${22 + i // 2}, sum{i};" for i in range(4))}
    }}
    """
)
_ADD_LESS_MINIMUMS = gl.constexpr(
    f"""
    {{
        .reg .f32 zero, part<4>, sum<4>;
        mov.f32 zero, 0f00000000;
        {_product(_PARTS, _CODES[0], _X[0], _ZEROS)}
        {_product(_PARTS, _CODES[1], _X[1], _PARTS)}
        {"".join(f"fma.rn.f32 sum{i}, part{i}, ${20 + i // 2}, ${4 + i};" for i in range(4))}
        {"".join(f"fma.rn.f32 ${i}, ${24 + i % 2}, ${22 + i // 2}, sum{i};" for i in range(4))}
    }}
    """
)
_SUMS_OF_INPUTS = gl.constexpr(
    f"""
    {{
        .reg .f32 zero, part<4>;
        .reg .b32 ones;
        mov.f32 zero, 0f00000000;
        mov.b32 ones, 0x3f803f80;
        {_product(_PARTS, _ONES, ("$2", "$3"), _ZEROS)}
        {_product(("$0", "$1", "part2", "part3"), _ONES, ("$4", "$5"), _PARTS)}
    }}
    """
)


@gluon.jit
def add_sixteens(sums, upper, lower, x, scales):
    """As `add_products`, of inputs whose first 16 have other scales than the last: of the upper output, of the lower
    one, then the others."""
    return gl.inline_asm_elementwise(
        _ADD_SIXTEENS,
        "=&f,=&f,=&f,=&f,f,f,f,f,r,r,r,r,r,r,r,r,r,r,r,r,f,f,f,f",
        [
            sums[0], sums[1], sums[2], sums[3],
            upper[0], upper[1], upper[2], upper[3], lower[0], lower[1], lower[2], lower[3],
            x[0], x[1], x[2], x[3], scales[0], scales[1], scales[2], scales[3],
        ],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )  # fmt: skip


@gluon.jit
def add_less_minimums(sums, upper, lower, x, scales, totals):
    """As `add_products`, and the totals of `sums_of_inputs` times what follows the two scales: minimums with the other
    sign."""
    return gl.inline_asm_elementwise(
        _ADD_LESS_MINIMUMS,
        "=&f,=&f,=&f,=&f,f,f,f,f,r,r,r,r,r,r,r,r,r,r,r,r,f,f,f,f,f,f",
        [
            sums[0], sums[1], sums[2], sums[3],
            upper[0], upper[1], upper[2], upper[3], lower[0], lower[1], lower[2], lower[3],
            x[0], x[1], x[2], x[3], scales[0], scales[1], scales[2], scales[3], totals[0], totals[1],
        ],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )  # fmt: skip


@gluon.jit
def sums_of_inputs(x):
    """Of 32 inputs, for the two rows of which a thread has sums: products with ones."""
    return gl.inline_asm_elementwise(
        _SUMS_OF_INPUTS,
        "=&f,=&f,r,r,r,r",
        [x[0], x[1], x[2], x[3]],
        dtype=(gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )
