"""The names that the kernel in Gluon is made of; some of them are Triton's, which Gluon can call."""

from facet.kernels.arrivals import arrives_last
from facet.kernels.dependent_launch import let_next_start, wait_for_previous
from facet.kernels.geglu.triton import let_through
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
from facet.kernels.to_eight_bits import greater_magnitudes, largest_magnitude, to_stored

__all__ = [
    "allocate_shared_memory",
    "arrives_last",
    "codes_of",
    "commit_copies",
    "copy_to_shared",
    "fence_async_shared",
    "gl",
    "gluon",
    "greater_magnitudes",
    "largest_magnitude",
    "let_next_start",
    "let_through",
    "scale_of",
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
