"""From the packed projection to what attention reads: queries, and keys and values in their pages, in one step.

The Triton kernel serves tensors on a GPU, the reference everything else.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from facet.kernels.head_inputs import reference
from facet.kernels.paged_attention.cache import HeadShape, LayerCache

__all__ = ["prepare_heads"]


def prepare_heads(
    projected: Tensor,
    heads: HeadShape,
    *,
    query_weight: Tensor,
    key_weight: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    cache: LayerCache | None,
    write_blocks: Tensor,
    write_slots: Tensor,
    values_are_normed: bool,
    is_invariant: bool = False,
) -> Tensor:
    """Normalised, rotated queries [rows, heads, head_dim]; this layer's keys and values go to `cache`.

    projected: [rows, queries (+ keys (+ values))], heads side by side. cos_sin: [rows, 2, pairs], the angles of these
    rows. `cache` is None where the layer reads another's keys: then `projected` holds queries alone. A cache of single
    vectors is given the value, from which attention derives the key. Without a values part, keys are the raw values.
    Heads may have no queries: keys and values are then all that happens.
    With `is_invariant`, a row's bits do not depend on how many rows there are.
    """
    prepare: Callable[..., Tensor] = reference.prepare_heads
    if projected.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.head_inputs import triton

        vectors_per_program = triton.INVARIANT_VECTORS if is_invariant else None
        prepare = partial(triton.prepare_heads, vectors_per_program=vectors_per_program)
    return prepare(
        projected,
        heads,
        query_weight=query_weight,
        key_weight=key_weight,
        eps=eps,
        cos_sin=cos_sin,
        cache=cache,
        write_blocks=write_blocks,
        write_slots=write_slots,
        values_are_normed=values_are_normed,
    )
