"""Products of tensor cores, beside those of `shuffled/products.py`, of groups of 16 inputs and of groups with minimums.
In PTX."""

from facet.kernels.gluon_names import gl, gluon
from facet.kernels.quantized.shuffled.products import multiplying

_PARTS, _ZEROS = ("part0", "part1", "part2", "part3"), ("zero",) * 4
# Registers of the first 16 inputs and of the last, behind four results and four sums.
_CODES, _X = (("$8", "$12", "$9", "$13"), ("$10", "$14", "$11", "$15")), (("$16", "$17"), ("$18", "$19"))
_ADD_SIXTEENS = gl.constexpr(
    f"""
    {{
        .reg .f32 zero, part<4>, sum<4>;
        mov.f32 zero, 0f00000000;
        {multiplying(_PARTS, _CODES[0], _X[0], _ZEROS)}
        {"".join(f"fma.rn.f32 sum{i}, part{i}, ${20 + i // 2}, ${4 + i};" for i in range(4))}
        {multiplying(_PARTS, _CODES[1], _X[1], _ZEROS)}
        {"".join(f"fma.rn.f32 ${i}, part{i}, ${22 + i // 2}, sum{i};" for i in range(4))}
    }}
    """
)
_ADD_LESS_MINIMUMS = gl.constexpr(
    f"""
    {{
        .reg .f32 zero, part<4>, sum<4>;
        mov.f32 zero, 0f00000000;
        {multiplying(_PARTS, _CODES[0], _X[0], _ZEROS)}
        {multiplying(_PARTS, _CODES[1], _X[1], _PARTS)}
        {"".join(f"fma.rn.f32 sum{i}, part{i}, ${20 + i // 2}, ${4 + i};" for i in range(4))}
        {"".join(f"fma.rn.f32 ${i}, ${24 + i % 2}, ${22 + i // 2}, sum{i};" for i in range(4))}
    }}
    """
)


@gluon.jit
def add_sixteens(sums, upper, lower, x, scales):
    """Like `add_products`, for inputs whose first 16 have other scales than the last: first the scales of the upper
    output and of the lower one for the former, then those for the latter."""
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
    """Like `add_products`, but also adds the totals of `sum_inputs` times what follows the two scales: minimums with
    the other sign."""
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
