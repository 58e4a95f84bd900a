"""The names that the kernels in Gluon are made of; some of them are Triton's, which Gluon can call, and some are short
sequences of PTX."""

from facet.kernels.arrivals import arrives_last
from facet.kernels.dependent_launch import let_next_start, start_after_previous, wait_for_previous
from facet.kernels.geglu.triton import let_through
from facet.kernels.gluon_names import (
    allocate_shared_memory,
    commit_copies,
    copy_tile,
    copy_to_shared,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    thread_barrier,
    wait_for_copies,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from facet.kernels.gluon_parts import stay_in_order
from facet.kernels.to_eight_bits import greater_magnitudes, largest_magnitude, to_stored

__all__ = [
    "add_codes",
    "allocate_shared_memory",
    "arrives_last",
    "codes_of",
    "commit_copies",
    "copy_tile",
    "copy_to_shared",
    "fence_async_shared",
    "gl",
    "gluon",
    "greater_magnitudes",
    "largest_magnitude",
    "let_next_start",
    "let_through",
    "mbarrier",
    "scale_of",
    "start_after_previous",
    "stay_in_order",
    "thread_barrier",
    "wait_for_copies",
    "wait_for_previous",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]


@gluon.jit
def scale_of(greatest, DIVISOR: gl.constexpr):
    """The scale of a row, by its largest magnitude: one number, which Triton's function of this name cannot take."""
    return gl.div_rn(greatest, greatest * 0.0 + DIVISOR)


@gluon.jit
def codes_of(x, scale, DTYPE: gl.constexpr, LEAST: gl.constexpr, GREATEST: gl.constexpr):
    """A row in steps of its scale: what `to_codes` computes, where the scale is one number."""
    divisor = gl.where(scale > 0.0, scale, 1.0)
    inverse = gl.div_rn(divisor * 0.0 + 1.0, divisor)
    quotient = x * inverse
    return to_stored(gl.fma(gl.fma(quotient, -divisor, x), inverse, quotient), DTYPE, LEAST, GREATEST)


def _products(widening: str) -> str:
    """Instructions that widen a word of codes of each of two outputs, and add their products."""
    return f"""
    {{
        .reg .b32 factor, offset, pair, shifted, upper<2>, lower<2>;
        {widening}
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
            {{$0, $1, $2, $3}}, {{upper0, lower0, upper1, lower1}}, {{$10, $11}}, {{$4, $5, $6, $7}};
    }}
    """


def _of_int8(result: str, word: str, bytes_of_pair: str) -> str:
    """Two codes in bfloat16. The low seven bits under the exponent of 64 make 64 + low / 2; twice that less 128, or
    less 256 where the sign is set, is the code. The sign is the bit by which 256 differs from 128."""
    return f"""
        prmt.b32 pair, {word}, 0, {bytes_of_pair};
        lop3.b32 {result}, pair, 0x007f007f, 0x42804280, 0xea;
        lop3.b32 offset, pair, 0x00800080, 0xc300c300, 0xea;
        fma.rn.bf16x2 {result}, {result}, factor, offset;
    """


def _of_e4m3(result: str, word: str, bytes_of_pair: str) -> str:
    """Two codes in bfloat16, whose exponents begin 120 lower: subnormal numbers are in their places too."""
    return f"""
        prmt.b32 pair, {word}, 0, {bytes_of_pair};
        shr.u32 shifted, pair, 4;
        and.b32 pair, pair, 0x80008000;
        lop3.b32 {result}, shifted, 0x07f007f0, pair, 0xea;
        fma.rn.bf16x2 {result}, {result}, factor, offset;
    """


_ADD_INT8 = gl.constexpr(
    _products(
        "mov.b32 factor, 0x40004000;"
        + "".join(
            _of_int8(f"{side}{half}", word, ("0x4140", "0x4342")[half])
            for side, word in (("upper", "$8"), ("lower", "$9"))
            for half in range(2)
        )
    )
)
_ADD_E4M3 = gl.constexpr(
    _products(
        "mov.b32 factor, 0x7b807b80; mov.b32 offset, 0x80008000;"
        + "".join(
            _of_e4m3(f"{side}{half}", word, ("0x1404", "0x3424")[half])
            for side, word in (("upper", "$8"), ("lower", "$9"))
            for half in range(2)
        )
    )
)


@gluon.jit
def add_codes(sums, upper, lower, first_x, second_x, IS_INTEGER: gl.constexpr):
    """Sums of 16 outputs x 8 rows, plus the products of 16 inputs: of each thread a word of codes of its upper and of
    its lower output, and two words of inputs. Sums are of two rows of the upper, then of the lower output."""
    ASSEMBLY: gl.constexpr = _ADD_INT8 if IS_INTEGER else _ADD_E4M3
    return gl.inline_asm_elementwise(
        ASSEMBLY,
        "=f,=f,=f,=f,f,f,f,f,r,r,r,r",
        [sums[0], sums[1], sums[2], sums[3], upper, lower, first_x, second_x],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )
