"""Products of tensor cores with 4-bit codes, beside those of `shuffled/products.py`: of values that have their
scales, of codes that are still words, and of outputs with minimums. In PTX."""

from facet.kernels.gluon_names import gl, gluon
from facet.kernels.quantized.int4.codes import raising, unpacking
from facet.kernels.quantized.shuffled.products import multiplying


@gluon.jit
def add_values(sums, upper, lower, x):
    """Like `add_products`, for values that have their scales already."""
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
    parts = [f"part{4 * row_tile + i}" for i in range(4)]
    codes = [f"{side}{2 * half + i}" for i in range(2) for side in ("upper", "lower")]
    x = [f"${19 + 4 * row_tile + 2 * half + i}" for i in range(2)]
    return multiplying(parts, codes, x, ["zero"] * 4 if half == 0 else parts)


_ADD_TWO_ROW_TILES = gl.constexpr(
    f"""
    {{
        .reg .b32 two, shifted, upper<4>, lower<4>;
        .reg .f32 zero, part<8>;
        mov.f32 zero, 0f00000000;
        {unpacking([f"upper{i}" for i in range(4)], "$16", "$18")}
        {unpacking([f"lower{i}" for i in range(4)], "$17", "$18").partition(";")[2]}
        {"".join(_product(row_tile, half) for half in range(2) for row_tile in range(2))}
        {"".join(f"fma.rn.f32 ${i}, part{i}, ${27 + i % 4 // 2}, ${8 + i};" for i in range(8))}
    }}
    """
)


@gluon.jit
def add_products_of_two(sums, upper, lower, offset, first_x, second_x, upper_scale, lower_scale):
    """Like `add_products`, for two tiles of 8 rows, whose sums follow one another, and for codes that are still words.

    All of it is one sequence of instructions again: what is made of a tile's codes is used twice, and gone before the
    next tile's is made.
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
def unpack_coarse(word):
    """Unpacks a word of a float16 scale and a minimum: the scale and -2^23 times it, minus the minimum and 2^23 times
    it."""
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


_PARTS = ("part0", "part1", "part2", "part3")
_ADD_LESS_MINIMUMS = gl.constexpr(
    f"""
    {{
        .reg .b32 shifted, bits, upper<4>, lower<4>;
        .reg .f32 zero, part<4>, less<4>, scale<4>;
        mov.f32 zero, 0f00000000;
        {raising([f"upper{i}" for i in range(4)], "$8")}
        {raising([f"lower{i}" for i in range(4)], "$9")}
        {multiplying(_PARTS, ["upper0", "lower0", "upper1", "lower1"], ["$11", "$12"], ["zero"] * 4)}
        {multiplying(_PARTS, ["upper2", "lower2", "upper3", "lower3"], ["$13", "$14"], _PARTS)}
        {_making_scale(0)}
        {_making_scale(1)}
        {"".join(f"fma.rn.f32 less{i}, ${15 + i % 2}, scale{1 + i // 2 * 2}, ${4 + i};" for i in range(4))}
        {"".join(f"fma.rn.f32 ${i}, part{i}, scale{i // 2 * 2}, less{i};" for i in range(4))}
    }}
    """
)


@gluon.jit
def add_products_less_minimums(sums, upper, lower, scales, x, x_sums, upper_coarse, lower_coarse):
    """Like `add_products`, for codes that are still words and outputs with minimums: a word of `scales` has a byte for
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
