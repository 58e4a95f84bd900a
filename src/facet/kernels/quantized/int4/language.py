"""The names of Gluon that the kernel uses, and the short sequences of instructions that it is made of.

Gluon cannot say that two bfloat16 numbers share a register, nor name the instruction that multiplies them, so these are
written in PTX. A tensor's element is then what one thread holds.
"""

import struct
from collections.abc import Sequence

from facet.kernels.dependent_launch import let_next_start, wait_for_previous
from facet.kernels.gluon_names import (
    allocate_shared_memory,
    commit_copies,
    copy_to_shared,
    fence_async_shared,
    gl,
    gluon,
    thread_barrier,
    wait_for_copies,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = [
    "add_products",
    "add_products_less_minimums",
    "add_products_of_two",
    "add_values",
    "allocate_shared_memory",
    "commit_copies",
    "commit_own_copies",
    "copy_own_block",
    "copy_own_coarse",
    "copy_to_shared",
    "dequantize_codes",
    "dequantize_fp4",
    "dequantize_less_minimums",
    "fence_async_shared",
    "gl",
    "gluon",
    "let_next_start",
    "load_chunks",
    "load_own_pair",
    "load_own_words",
    "load_sums_at",
    "offset_of",
    "scales_of_bytes",
    "shared_memory",
    "stay_in_order",
    "store_sums_at",
    "sum_inputs",
    "thread_barrier",
    "unpack_coarse",
    "unpack_codes",
    "unpack_scales",
    "unpack_small_scales",
    "values_of_fp4",
    "wait_for_copies",
    "wait_for_previous",
    "wait_for_warp",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]


@gluon.jit
def offset_of(zero):
    """Two bfloat16 numbers -128 - zero in a word: what `unpack_codes` adds."""
    return (zero * 0x00010001) | -1023360256  # 0xC300C300


def _unpacking(pairs: Sequence[str], word: str, offset: str) -> str:
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


def _raising(pairs: Sequence[str], word: str) -> str:
    """As `_unpacking`, of numbers 128 + u, which spares what takes 128 away."""
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
        {_unpacking(_RESULTS, "$4", "$5")}
    }}
    """
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
    """Of two elements each, which make one register: $5, $7 and $9 are $4, $6 and $8 again. A code times the rest of a
    scale is exact, so that values are rounded once."""
    lines = [_unpacking(_PAIRS, "$4", "$8"), _scale_of(half, is_bfloat16=is_bfloat16)]
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
        {_raising(_PAIRS, "$4")}
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


@gluon.constexpr_function
def _dequantization(half, is_bfloat16):
    return _DEQUANTIZE[int(half), bool(is_bfloat16)]


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


@gluon.jit
def dequantize_codes(word, scales, offset, HALF: gl.constexpr, DTYPE: gl.constexpr):
    """The values of each word's eight codes in bfloat16, [.., sides, halves of a product's inputs, products].

    `scales` are words of those of the first half's output and of the second's; `offset` is of `offset_of`.
    """
    ASM: gl.constexpr = _dequantization(HALF, gl.bfloat16 == DTYPE)
    return _values(ASM, "=&r,=&r,=&r,=&r,r,r,r,r,r,r", [_twice(word), _twice(scales), _twice(offset)])


@gluon.jit
def dequantize_less_minimums(word, scale, offset):
    """As `dequantize_codes`: codes plus 128, times a float32 scale, plus an offset."""
    inputs = [_twice(word), _twice(scale), _twice(offset)]
    return _values(_DEQUANTIZE_LESS_MINIMUMS, "=&r,=&r,=&r,=&r,r,r,f,f,f,f", inputs)


@gluon.jit
def dequantize_fp4(word, scale):
    """As `dequantize_codes`, of codes e2m1. `scale`: bits of one, e4m3. Exact, and 2^7 times too small."""
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


@gluon.jit
def unpack_scales(word, DTYPE: gl.constexpr):
    """The two scales of a word in float32, the lower first."""
    if gl.bfloat16 == DTYPE:
        low = (word << 16).to(gl.float32, bitcast=True)
        high = (word & -65536).to(gl.float32, bitcast=True)
    else:
        low = word.to(gl.int16).to(DTYPE, bitcast=True).to(gl.float32)
        high = (word >> 16).to(gl.int16).to(DTYPE, bitcast=True).to(gl.float32)
    return low, high


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


@gluon.jit
def unpack_coarse(word):
    """Of a word of a float16 scale and a minimum: the scale and -2^23 times it, minus the minimum and 2^23 times it."""
    return gl.inline_asm_elementwise(
        """
        {
            .reg .b16 scale, minimum;
            .reg .f32 positive;
            mov.b32 {scale, minimum}, $4;
            cvt.f32.f16 $0, scale;
            mul.f32 $1, $0, 0fCB000000;
            cvt.f32.f16 positive, minimum;
            neg.f32 $2, positive;
            mul.f32 $3, positive, 0f4B000000;
        }
        """,
        "=&f,=&f,=&f,=&f,r",
        [word],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )


@gluon.jit
def sum_inputs(x):
    """Sums over 32 inputs of a thread's two rows, of those whose products `add_products` gives it: the product with a
    tile of ones."""
    return gl.inline_asm_elementwise(
        """
        {
            .reg .b32 ones;
            .reg .f32 zero, part<4>, other<2>;
            mov.b32 ones, 0x3F803F80;
            mov.f32 zero, 0f00000000;
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
                {part0, part1, part2, part3}, {ones, ones, ones, ones}, {$2, $3}, {zero, zero, zero, zero};
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
                {$0, $1, other0, other1}, {ones, ones, ones, ones}, {$4, $5}, {part0, part1, part2, part3};
        }
        """,
        "=f,=f,r,r,r,r",
        [x[0], x[1], x[2], x[3]],
        dtype=(gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )


@gluon.jit
def add_products(sums, upper, lower, x, upper_scale, lower_scale):
    """Sums of a tile of 16 outputs x 8 rows, plus the products of 32 inputs times the scale of each output.

    Two products of tensor cores, of 16 inputs each: a thread has four words of codes of its upper and of its lower
    output, four of inputs, and sums of two rows of the upper, then of the lower output. All in one, so that the
    compiler keeps the order: with a tile's products before the next tile's it takes half the registers.
    """
    return gl.inline_asm_elementwise(
        """
        {
            .reg .f32 zero, part<4>;
            mov.f32 zero, 0f00000000;
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
                {part0, part1, part2, part3}, {$8, $12, $9, $13}, {$16, $17}, {zero, zero, zero, zero};
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
                {part0, part1, part2, part3}, {$10, $14, $11, $15}, {$18, $19}, {part0, part1, part2, part3};
            fma.rn.f32 $0, part0, $20, $4;
            fma.rn.f32 $1, part1, $20, $5;
            fma.rn.f32 $2, part2, $21, $6;
            fma.rn.f32 $3, part3, $21, $7;
        }
        """,
        "=f,=f,=f,=f,f,f,f,f,r,r,r,r,r,r,r,r,r,r,r,r,f,f",
        [
            sums[0], sums[1], sums[2], sums[3],
            upper[0], upper[1], upper[2], upper[3], lower[0], lower[1], lower[2], lower[3],
            x[0], x[1], x[2], x[3], upper_scale, lower_scale,
        ],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )  # fmt: skip


def _making_scale(output: int) -> str:
    """Instructions that make the scale of an output and, of its scale and minimum, what the sum of inputs is multiplied
    by. Under the exponent of 2^23 a byte is 2^23 more than it says, which is taken away as the product is rounded."""
    scale, minimum = 2 * output, 2 * output + 1
    first = 17 + 4 * output
    return f"""
        prmt.b32 bits, $10, 0x4B000000, {0x7540 + scale};
        fma.rn.f32 scale{scale}, bits, ${first}, ${first + 1};
        prmt.b32 bits, $10, 0x4B000000, {0x7540 + minimum};
        fma.rn.f32 scale{minimum}, bits, ${first + 2}, ${first + 3};
        fma.rn.f32 scale{minimum}, scale{scale}, 0fC3000000, scale{minimum};
    """


_ADD_LESS_MINIMUMS = gl.constexpr(
    f"""
    {{
        .reg .b32 shifted, bits, upper<4>, lower<4>;
        .reg .f32 zero, part<4>, less<4>, scale<4>;
        mov.f32 zero, 0f00000000;
        {_raising([f"upper{i}" for i in range(4)], "$8")}
        {_raising([f"lower{i}" for i in range(4)], "$9")}
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
            {{part0, part1, part2, part3}}, {{upper0, lower0, upper1, lower1}}, {{$11, $12}},
            {{zero, zero, zero, zero}};
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
            {{part0, part1, part2, part3}}, {{upper2, lower2, upper3, lower3}}, {{$13, $14}},
            {{part0, part1, part2, part3}};
        {_making_scale(0)}
        {_making_scale(1)}
        {"".join(f"fma.rn.f32 less{i}, ${15 + i % 2}, scale{1 + i // 2 * 2}, ${4 + i};" for i in range(4))}
        {"".join(f"fma.rn.f32 ${i}, part{i}, scale{i // 2 * 2}, less{i};" for i in range(4))}
    }}
    """
)


@gluon.jit
def add_products_less_minimums(sums, upper, lower, scales, x, x_sums, upper_coarse, lower_coarse):
    """As `add_products`, of codes that are still words and of outputs with minimums: a word of `scales` has a byte for
    the scale and one for the minimum of the upper output, then of the lower.

    Products are of codes plus 128. So 128 times the scale is taken away with the minimum, times the sums of inputs
    (`sum_inputs`): bits of float32 that are far below those of results. All in one again, for the sake of registers.
    """
    return gl.inline_asm_elementwise(
        _ADD_LESS_MINIMUMS,
        "=&f,=&f,=&f,=&f,f,f,f,f,r,r,r,r,r,r,r,f,f,f,f,f,f,f,f,f,f",
        [
            sums[0], sums[1], sums[2], sums[3], upper, lower, scales, x[0], x[1], x[2], x[3], x_sums[0], x_sums[1],
            upper_coarse[0], upper_coarse[1], upper_coarse[2], upper_coarse[3],
            lower_coarse[0], lower_coarse[1], lower_coarse[2], lower_coarse[3],
        ],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )  # fmt: skip


@gluon.jit
def add_values(sums, upper, lower, x):
    """As `add_products`, of values that have their scales already."""
    return gl.inline_asm_elementwise(
        """
        {
            .reg .f32 part<4>;
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
                {part0, part1, part2, part3}, {$8, $12, $9, $13}, {$16, $17}, {$4, $5, $6, $7};
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
                {$0, $1, $2, $3}, {$10, $14, $11, $15}, {$18, $19}, {part0, part1, part2, part3};
        }
        """,
        "=f,=f,=f,=f,f,f,f,f,r,r,r,r,r,r,r,r,r,r,r,r",
        [
            sums[0], sums[1], sums[2], sums[3],
            upper[0], upper[1], upper[2], upper[3], lower[0], lower[1], lower[2], lower[3],
            x[0], x[1], x[2], x[3],
        ],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )  # fmt: skip


def _product(row_tile: int, half: int) -> str:
    """The instruction that multiplies 16 of 32 inputs, of one tile of rows, after its halves of codes are unpacked."""
    parts = ", ".join(f"part{4 * row_tile + i}" for i in range(4))
    added = "zero, zero, zero, zero" if half == 0 else parts
    codes = ", ".join(f"{side}{2 * half + i}" for i in range(2) for side in ("upper", "lower"))
    x = ", ".join(f"${19 + 4 * row_tile + 2 * half + i}" for i in range(2))
    return f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{parts}}}, {{{codes}}}, {{{x}}}, {{{added}}};"


_ADD_TWO_ROW_TILES = gl.constexpr(
    f"""
    {{
        .reg .b32 two, shifted, upper<4>, lower<4>;
        .reg .f32 zero, part<8>;
        mov.f32 zero, 0f00000000;
        {_unpacking([f"upper{i}" for i in range(4)], "$16", "$18")}
        {_unpacking([f"lower{i}" for i in range(4)], "$17", "$18").partition(";")[2]}
        {"".join(_product(row_tile, half) for half in range(2) for row_tile in range(2))}
        {"".join(f"fma.rn.f32 ${i}, part{i}, ${27 + i % 4 // 2}, ${8 + i};" for i in range(8))}
    }}
    """
)


@gluon.jit
def add_products_of_two(sums, upper, lower, offset, first_x, second_x, upper_scale, lower_scale):
    """As `add_products`, of two tiles of 8 rows, whose sums follow one another, and of codes that are still words.

    All in one again: what is made of a tile's codes is used twice, and gone before the next tile's is made.
    """
    return gl.inline_asm_elementwise(
        _ADD_TWO_ROW_TILES,
        "=&f,=&f,=&f,=&f,=&f,=&f,=&f,=&f,f,f,f,f,f,f,f,f,r,r,r,r,r,r,r,r,r,r,r,f,f",
        [
            sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7], upper, lower, offset,
            first_x[0], first_x[1], first_x[2], first_x[3], second_x[0], second_x[1], second_x[2], second_x[3],
            upper_scale, lower_scale,
        ],
        dtype=(
            gl.float32, gl.float32, gl.float32, gl.float32, gl.float32, gl.float32, gl.float32, gl.float32,
        ),
        is_pure=True,
        pack=1,
    )  # fmt: skip


@gluon.jit
def shared_memory():
    """The address at which the shared memory of the program begins, in bytes.

    Below, addresses are such, and what a thread does with them is hidden from the compiler: it adds no barriers. For
    the memory to be there, something of its size is allocated and nothing else is.
    """
    return gl.inline_asm_elementwise("mov.u32 $0, global_smem;", "=r", [], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def copy_own_block(place, codes, scale_place, scales, is_there):
    """Starts the copies of a thread's codes of a block, 16 bytes of outputs g and 16 of outputs g + 8, and of one of
    the block's words of scales. Zeros where the block is not there."""
    gl.inline_asm_elementwise(
        """
        {
            .reg .pred there;
            .reg .b32 sixteen, four;
            setp.ne.b32 there, $5, 0;
            selp.b32 sixteen, 16, 0, there;
            selp.b32 four, 4, 0, there;
            cp.async.cg.shared.global [$1], [$2], 16, sixteen;
            cp.async.cg.shared.global [$1 + 512], [$2 + 512], 16, sixteen;
            cp.async.ca.shared.global [$3 + 1024], [$4], 4, four; // $0
        }
        """,
        "=r,r,l,r,l,r",
        [place, codes.to(gl.int64), scale_place, scales.to(gl.int64), is_there.to(gl.int32)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def copy_own_coarse(place, coarse, is_there):
    """Starts the copy of one of a block's words of coarse scales. Zero where the block is not there."""
    gl.inline_asm_elementwise(
        """
        {
            .reg .pred there;
            .reg .b32 four;
            setp.ne.b32 there, $3, 0;
            selp.b32 four, 4, 0, there;
            cp.async.ca.shared.global [$1 + 1152], [$2], 4, four; // $0
        }
        """,
        "=r,r,l,r",
        [place, coarse.to(gl.int64), is_there.to(gl.int32)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def commit_own_copies():
    """Those that a thread has started since the last time are a group."""
    gl.inline_asm_elementwise("cp.async.commit_group; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.constexpr_function
def _waiting(num_outstanding):
    return f"cp.async.wait_group {num_outstanding}; bar.warp.sync 0xffffffff; // $0"


@gluon.jit
def wait_for_warp(NUM_OUTSTANDING: gl.constexpr):
    """Until all but so many groups of copies have come, of every thread of the warp."""
    ASM: gl.constexpr = _waiting(NUM_OUTSTANDING)
    gl.inline_asm_elementwise(ASM, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def load_own_words(place):
    """Four words, apart."""
    return gl.inline_asm_elementwise(
        "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,r",
        [place],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def load_own_pair(place):
    """Two words."""
    return gl.inline_asm_elementwise(
        "ld.shared.v2.b32 {$0, $1}, [$2];", "=r,=r,r", [place], dtype=(gl.int32, gl.int32), is_pure=False, pack=1
    )


def _loading(*, is_filled: bool) -> str:
    """Instructions that load the words of four chunks, each where it is live."""
    words = [[f"${4 * chunk + i}" for i in range(4)] for chunk in range(4)]
    lines = [f"mov.b32 {word}, 0;" for chunk in words for word in chunk] if is_filled else []
    for chunk in range(4):
        lines.append(f"setp.ne.b32 live, ${17 + chunk}, 0;")
        lines.append(f"@live ld.global.v4.b32 {{{', '.join(words[chunk])}}}, [$16 + {64 * chunk}];")
    return f"{{ .reg .pred live; {' '.join(lines)} }}"


_LOAD, _LOAD_OR_FILL = gl.constexpr(_loading(is_filled=False)), gl.constexpr(_loading(is_filled=True))
_LOADED = gl.constexpr(",".join(["=&r"] * 16 + ["l"] + ["r"] * 4 + [str(i) for i in range(16)]))


@gluon.jit
def load_chunks(before, pointer, is_live, IS_FILLED: gl.constexpr):
    """The thread's eight inputs of each of four chunks, in words. Where one is not live, zeros or, if they are not
    filled, what was there before: that spares the instructions that would make them zero."""
    ASM: gl.constexpr = _LOAD_OR_FILL if IS_FILLED else _LOAD
    words = gl.inline_asm_elementwise(
        ASM,
        _LOADED,
        [
            pointer.to(gl.int64),
            is_live[0].to(gl.int32), is_live[1].to(gl.int32), is_live[2].to(gl.int32), is_live[3].to(gl.int32),
            before[0][0], before[0][1], before[0][2], before[0][3],
            before[1][0], before[1][1], before[1][2], before[1][3],
            before[2][0], before[2][1], before[2][2], before[2][3],
            before[3][0], before[3][1], before[3][2], before[3][3],
        ],
        dtype=(
            gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32,
            gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32,
        ),
        is_pure=False,
        pack=1,
    )  # fmt: skip
    return (
        (words[0], words[1], words[2], words[3]),
        (words[4], words[5], words[6], words[7]),
        (words[8], words[9], words[10], words[11]),
        (words[12], words[13], words[14], words[15]),
    )


@gluon.jit
def store_sums_at(place, sums):
    """Four numbers of each thread, for others to load behind a barrier."""
    gl.inline_asm_elementwise(
        "st.shared.v4.f32 [$1], {$2, $3, $4, $5}; // $0",
        "=r,r,f,f,f,f",
        [place, sums[0], sums[1], sums[2], sums[3]],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def load_sums_at(place):
    return gl.inline_asm_elementwise(
        "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];",
        "=f,=f,=f,=f,r",
        [place],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def stay_in_order():
    """Keep the compiler from moving loads across: those ahead of time to where their results are needed, or others
    ahead of where registers are free for them."""
    gl.inline_asm_elementwise("bar.warp.sync 0xffffffff; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
