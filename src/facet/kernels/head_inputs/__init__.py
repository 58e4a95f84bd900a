"""Prepares the inputs of attention from the packed projection: queries, and keys and values in their pages.

The Triton kernel serves tensors on a GPU, the reference everything else.
"""

from typing import Unpack

from torch import Tensor

from facet.kernels.head_inputs import reference
from facet.kernels.head_inputs.reference import Arguments
from facet.kernels.paged_attention.cache import HeadShape

__all__ = ["Arguments", "invariant_prepare_heads", "prepare_heads"]


def prepare_heads(projected: Tensor, heads: HeadShape, **arguments: Unpack[Arguments]) -> Tensor:
    """Normalised, rotated queries [rows, heads, head_dim]; this layer's keys and values go to `cache`.

    projected: [rows, queries (+ keys (+ values))], heads side by side. cos_sin: [rows, 2, pairs], the angles of these
    rows. `cache` is None where the layer reads another's keys: then `projected` holds queries alone. A cache of shared
    vectors is given the value, from which attention computes the key. Without a values part, keys are the raw values.
    With no query heads, only keys and values are written.
    """
    if projected.is_cuda:
        # Imported here and below: machines without a GPU need no Triton.
        from facet.kernels.head_inputs import triton

        return triton.prepare_heads(projected, heads, **arguments)
    return reference.prepare_heads(projected, heads, **arguments)


def invariant_prepare_heads(projected: Tensor, heads: HeadShape, **arguments: Unpack[Arguments]) -> Tensor:
    """Like `prepare_heads`, but a row's bits do not depend on how many rows there are; those of the reference never
    do."""
    if projected.is_cuda:
        from facet.kernels.head_inputs import triton

        return triton.prepare_heads(projected, heads, **arguments, vectors_per_program=triton.INVARIANT_VECTORS)
    return reference.prepare_heads(projected, heads, **arguments)
