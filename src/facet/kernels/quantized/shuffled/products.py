"""Products of tensor cores, with what comes before and after them in a thread's registers, in PTX.

Gluon cannot say that two bfloat16 numbers share a register, nor name the instruction that multiplies them. A tensor's
element is then what one thread holds.
"""

from collections.abc import Sequence

from facet.kernels.gluon_names import gl, gluon


def multiplying(sums: Sequence[str], codes: Sequence[str], x: Sequence[str], added: Sequence[str]) -> str:
    """The instruction that multiplies 16 outputs x 16 inputs by 16 inputs x 8 rows."""
    operands = ", ".join(f"{{{', '.join(names)}}}" for names in (sums, codes, x, added))
    return f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {operands};"


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
