"""Says where decode attention prepares heads itself, so that no kernel has to before it."""

from collections.abc import Sequence

from torch import Tensor

from facet.kernels.paged_attention.cache import LayerCache
from facet.kernels.paged_attention.decode.hopper.tuning import decodes_in_ring
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.plan import HeadsToPrepare

# Not before it has been timed on a card: so far a kernel of their own prepares all heads.
IS_SERVED = False


def can_be_left(
    heads: HeadsToPrepare, queries: Tensor, cache: LayerCache, decodes: Sequence[DecodePlan], *, is_invariant: bool
) -> bool:
    """Whether these rows, all of a step, go through a ring that can do it. `queries`: not prepared.

    Tiles are then copied before the kernels ahead have ended. Keys of earlier tokens lie there by then, those of a
    prompt in the same step, too: each half of a step begins with launches that wait for all that came before.
    """
    if not IS_SERVED or len(decodes) != 1 or cache.is_shared:
        return False
    (plan,) = decodes
    num_vectors = queries.shape[1] + (0 if heads.key_weight is None else 2 * cache.keys.shape[2])
    has_values = heads.projected.shape[1] == num_vectors * queries.shape[2]  # else keys are the values, too
    return (
        plan.row_map is None
        and has_values
        and heads.projected.stride(1) == 1
        and heads.cos_sin.is_contiguous()
        and decodes_in_ring(queries, cache, plan, None, is_invariant=is_invariant)
    )
