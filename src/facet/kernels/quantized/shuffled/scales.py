"""Words of scales in float32, by short sequences of instructions."""

from facet.kernels.gluon_names import gl, gluon


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
