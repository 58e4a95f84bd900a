"""The names of Gluon that the kernel uses, and the short sequences of instructions that it is made of, in PTX.

Those that matrices of 4-bit codes have too come from there (`int4/language.py`).
"""

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
from facet.kernels.quantized.int4.language import (
    add_products,
    commit_own_copies,
    copy_own_block,
    load_own_words,
    scales_of_bytes,
    shared_memory,
    stay_in_order,
    unpack_scales,
    wait_for_warp,
)

__all__ = [
    "add_less_minimums",
    "add_products",
    "add_sixteens",
    "allocate_shared_memory",
    "commit_copies",
    "commit_own_copies",
    "copy_own_block",
    "copy_to_shared",
    "dequantize_bytes",
    "fence_async_shared",
    "gl",
    "gluon",
    "let_next_start",
    "load_own_words",
    "load_two_chunks",
    "scales_of_bytes",
    "shared_memory",
    "stay_in_order",
    "sums_of_inputs",
    "thread_barrier",
    "unpack_bytes",
    "unpack_scales",
    "wait_for_copies",
    "wait_for_previous",
    "wait_for_warp",
    "warpgroup_mma",
    "warpgroup_mma_wait",
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


def _loading(*, is_filled: bool, in_sixteens: bool) -> str:
    """Instructions that load the words of two chunks, each where it is live: all at once, or of each group of 16."""
    words = [f"${i}" for i in range(8)]
    lines = [f"mov.b32 {word}, 0;" for word in words] if is_filled else []
    for chunk in range(2):
        mine = words[4 * chunk : 4 * chunk + 4]
        lines.append(f"setp.ne.b32 live, ${9 + chunk}, 0;")
        if in_sixteens:
            lines.append(f"@live ld.global.v2.b32 {{{', '.join(mine[:2])}}}, [$8 + {64 * chunk}];")
            lines.append(f"@live ld.global.v2.b32 {{{', '.join(mine[2:])}}}, [$8 + {64 * chunk + 32}];")
        else:
            lines.append(f"@live ld.global.v4.b32 {{{', '.join(mine)}}}, [$8 + {64 * chunk}];")
    return f"{{ .reg .pred live; {' '.join(lines)} }}"


_LOADS = {
    (is_filled, in_sixteens): _loading(is_filled=is_filled, in_sixteens=in_sixteens)
    for is_filled in (False, True)
    for in_sixteens in (False, True)
}
_LOADED = gl.constexpr(",".join(["=&r"] * 8 + ["l", "r", "r"] + [str(i) for i in range(8)]))


@gluon.constexpr_function
def _instructions(is_filled, in_sixteens):
    return _LOADS[bool(is_filled), bool(in_sixteens)]


@gluon.jit
def load_two_chunks(before, pointer, first_live, second_live, IS_FILLED: gl.constexpr, IN_SIXTEENS: gl.constexpr):
    """The thread's eight inputs of each of two chunks, in words. Where one is not live, zeros or, if they are not
    filled, what was there before."""
    ASM: gl.constexpr = _instructions(IS_FILLED, IN_SIXTEENS)
    words = gl.inline_asm_elementwise(
        ASM,
        _LOADED,
        [
            pointer.to(gl.int64), first_live.to(gl.int32), second_live.to(gl.int32),
            before[0][0], before[0][1], before[0][2], before[0][3],
            before[1][0], before[1][1], before[1][2], before[1][3],
        ],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=False,
        pack=1,
    )  # fmt: skip
    return (words[0], words[1], words[2], words[3]), (words[4], words[5], words[6], words[7])
