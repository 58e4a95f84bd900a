"""Divides decoded rows where a row's bits may not depend on the others: into shares that follow from its context alone.

A share is what sums are made of, so its keys are fixed. Which program takes it is not: where rows are few, each share
has a program of its own; where they are many, a program takes several in turn. Shares are put together in their order,
by their program if it has all of them, and else from where each was left (`in_turn.py`).
"""

import torch
from torch import Tensor

from facet.kernels.paged_attention.cache import HeadShape, LayerCache
from facet.kernels.paged_attention.decode.grouped import rows_of_group as rows_in_tile
from facet.kernels.paged_attention.decode.in_turn import can_take_turns
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.decode.readers import Reader
from facet.kernels.paged_attention.decode.tuning import (
    MOST_MERGED_BY_LAST,
    DecodeTuning,
    choose_tile,
    fitting_shares,
    keys_worth_a_program,
)

# Most shares of a row, and the least keys of one. A window is short, and where its shares are left behind they are put
# together by whoever finishes last. Contexts of any length have more shares, or one request with a long one would leave
# processors idle.
_WINDOW_SHARES, _WINDOW_KEYS = MOST_MERGED_BY_LAST, 128
_MOST_SHARES, _LEAST_KEYS = 64, 128
# The least keys where shares are added in turn: adding them costs little, and one request is the quicker.
_LEAST_KEYS_IN_TURN = 64
# Programs of a row at least, so that long contexts are not what all others wait for. Where shares are added in turn,
# programs with nothing to do end at once. 90 x 768 and 10 x 8K of E4B: 309 us with 4 and 239 with 16.
_LEAST_PROGRAMS, _LEAST_PROGRAMS_IN_TURN = 4, 16


def choose_fixed_tuning(reader: Reader, queries: Tensor, cache: LayerCache, plan: DecodePlan) -> DecodeTuning:
    """All but the programs and the tiles on their way follows from the layer: no bit depends on those."""
    window = plan.rows.window
    num_splits, least_keys = _shares(has_window=window > 0)
    keys_per_tile, num_stages = choose_tile(reader, queries, cache)
    fitting = fitting_shares(plan, queries.device, 2)
    num_programs, program_keys, rows_of_group = max(fitting, _LEAST_PROGRAMS), 0, 1
    if can_take_turns(reader, cache):
        least_keys = -(-window // num_splits) if window else _LEAST_KEYS_IN_TURN
        # Beside a prompt never one program alone, which has a kernel of its own: microseconds count for little there.
        least_of_window = 1 if plan.row_map is None else 2
        num_programs = max(fitting, least_of_window if window else _LEAST_PROGRAMS_IN_TURN)
        program_keys = keys_worth_a_program(fitting)
        if plan.is_anchored:
            num_splits += 1  # a window begins and ends within a share
        if plan.may_share_seats and fitting < 2:  # see `gains_by_groups`
            rows_of_group = max(1, rows_in_tile(plan.rows.heads.num_heads, plan.rows.heads.num_kv_heads))
    return DecodeTuning(
        keys_per_tile=keys_per_tile,
        least_keys=-(-least_keys // keys_per_tile) * keys_per_tile,
        num_splits=num_splits,
        num_warps=4,
        num_stages=num_stages,
        last_merges=window > 0,
        exits_early=True,
        num_programs=min(num_splits, num_programs),
        program_keys=program_keys,
        rows_of_group=rows_of_group,
    )


def rows_of_partials(heads: HeadShape, num_bytes: int, *, has_window: bool) -> int:
    """The most rows whose shares leave no more than this behind, and one at least."""
    num_splits = _shares(has_window=has_window)[0] + has_window
    return max(1, num_bytes // (num_splits * heads.num_heads * heads.head_dim * torch.float32.itemsize))


def _shares(*, has_window: bool) -> tuple[int, int]:
    return (_WINDOW_SHARES, _WINDOW_KEYS) if has_window else (_MOST_SHARES, _LEAST_KEYS)
