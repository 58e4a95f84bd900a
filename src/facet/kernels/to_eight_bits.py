"""Rounds float32 numbers to types of eight bits, inside Triton kernels."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq


@triton.jit
def greater_magnitudes(greatest, x):
    """The greater of each two, where `greatest` holds magnitudes. A NaN counts as the greatest."""
    return tl.maximum(greatest, tl.abs(x.to(tl.float32)), propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest_magnitude(x, axis: tl.constexpr):
    """The largest magnitude of float32 numbers. A NaN counts as the largest, so that the scale of its row is one
    too."""
    bits = tl.abs(x).to(tl.int32, bitcast=True)  # of positive numbers, in the order of the numbers
    return tl.max(bits, axis=axis).to(tl.float32, bitcast=True)


@triton.jit
def scale_of(greatest, DIVISOR: tl.constexpr):
    """The scale of a row, by its largest magnitude."""
    return tl.div_rn(greatest, tl.zeros_like(greatest) + DIVISOR)


@triton.jit
def to_codes(x, scale, dtype: tl.constexpr, LEAST: tl.constexpr, GREATEST: tl.constexpr):
    """x in steps of `scale`, which broadcasts over x. A row of zeros has the scale 0, by which nothing is divided."""
    divisor = tl.where(scale > 0.0, scale, 1.0)
    return to_stored(_divided(x, divisor), dtype, LEAST, GREATEST)


@triton.jit
def _divided(x, divisor):
    """x / divisor as a division rounds it, on a GPU in three operations for each x instead of twenty.

    A quotient by way of the inverse may be off by a rounding. What it leaves of x is found exactly, in a fused
    operation, and put right in another (Markstein, 1990). That holds unless what is left underflows: then x is so small
    that its code is zero, or the divisor is below 2^-100.
    """
    if not cuda_capability_geq(8, 0):  # Triton's interpreter rounds twice in a fused operation
        return tl.div_rn(x, tl.broadcast_to(divisor, x.shape))
    inverse = tl.broadcast_to(tl.div_rn(tl.zeros_like(divisor) + 1.0, divisor), x.shape)
    quotient = x * inverse
    # The divisor is negated, and not the quotient: there is one of it.
    return tl.fma(tl.fma(quotient, tl.broadcast_to(-divisor, x.shape), x), inverse, quotient)


@triton.jit
def to_stored(x, dtype: tl.constexpr, LEAST: tl.constexpr, GREATEST: tl.constexpr):
    """x as `dtype` holds it, after cutting off what lies outside the range."""
    if dtype == tl.float8e4nv and GREATEST == 448.0 and cuda_capability_geq(8, 9):
        return x.to(dtype)  # one instruction for two numbers, which cuts and rounds as below
    # Comparisons with a NaN are false: it stays.
    cut = tl.where(x > GREATEST, GREATEST, tl.where(x < LEAST, LEAST, x))
    if dtype.primitive_bitwidth == 8:
        cut = _on_grid(cut, dtype)
    return cut.to(dtype)


@triton.jit
def _on_grid(x, dtype: tl.constexpr):
    """Float32 numbers within the range of `dtype`, rounded to numbers it has: to the nearest, ties to even.

    Adding a number so large that float32 has no finer step than `dtype` has at x rounds; taking it away again is exact.
    The conversion that follows then has nothing left to round, on whatever it runs.
    """
    if dtype == tl.int8:
        large = 12582912.0  # 1.5 * 2^23: steps of 1
        x = tl.where(x == x, x, 0.0)  # an int8 has no NaN; the scale is one
    else:
        power = (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)  # the power of two below |x|
        if dtype == tl.float8e4nv:
            large = tl.where(power < 2.0**-6, 2.0**-6, power) * (1.5 * 2.0**20)  # 3 bits after the first
        else:
            large = tl.where(power < 2.0**-14, 2.0**-14, power) * (1.5 * 2.0**21)  # 2 bits
    return (x + large) - large
