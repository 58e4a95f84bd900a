"""Divides decoded rows where a row's bits may not depend on the others: into shares that follow from its context alone.

A share is what sums are made of, so its keys are fixed. Which program takes it is not: where rows are few, each share
has a program of its own; where they are many, a program takes several in turn. Each leaves its result behind, and they
are put together in their order.
"""

import torch
from torch import Tensor

from facet.kernels.paged_attention.cache import HeadShape, LayerCache
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.decode.readers import Reader
from facet.kernels.paged_attention.decode.tuning import (
    MOST_MERGED_BY_LAST,
    DecodeTuning,
    choose_tile,
    fitting_shares,
)

# Most shares of a row, and the least keys of one. A window is short, and its shares are put together by whoever
# finishes last. Contexts of any length have more shares, or one request with a long one would leave processors idle.
# Steps of E4B in windows of 512, with shares of 128 keys and of 64: 4.07 and 4.01 ms for one request, 4.84 and 4.95 for
# 32, 5.06 and 5.18 for as many as fitted a small cache.
_WINDOW_SHARES, _WINDOW_KEYS = MOST_MERGED_BY_LAST, 128
_MOST_SHARES, _LEAST_KEYS = 64, 128
# Programs of a row at least, so that long contexts are not what all others wait for.
_LEAST_PROGRAMS = 4


def choose_fixed_tuning(reader: Reader, queries: Tensor, cache: LayerCache, plan: DecodePlan) -> DecodeTuning:
    """All but the number of programs follows from the layer: no bit depends on that."""
    has_window = plan.rows.window > 0
    num_splits, least_keys = _shares(has_window=has_window)
    keys_per_tile, num_stages = choose_tile(reader, queries, cache)
    fitting = fitting_shares(plan, queries.device, 2)
    return DecodeTuning(
        keys_per_tile=keys_per_tile,
        least_keys=max(least_keys, keys_per_tile),
        num_splits=num_splits,
        num_warps=4,
        num_stages=num_stages,
        last_merges=has_window,
        exits_early=True,
        num_programs=min(num_splits, max(fitting, _LEAST_PROGRAMS)),
    )


def rows_of_partials(heads: HeadShape, num_bytes: int, *, has_window: bool) -> int:
    """The most rows whose shares leave no more than this behind, and one at least."""
    num_splits, _ = _shares(has_window=has_window)
    return max(1, num_bytes // (num_splits * heads.num_heads * heads.head_dim * torch.float32.itemsize))


def _shares(*, has_window: bool) -> tuple[int, int]:
    return (_WINDOW_SHARES, _WINDOW_KEYS) if has_window else (_MOST_SHARES, _LEAST_KEYS)
