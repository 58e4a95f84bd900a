"""Decodes rows of drafts together: those of one sequence that follow each other read its keys once.

A tile of a product has at least 16 rows, and a decoded row fills only as many as query heads share a key head: four of
E4B. The rest is filled with the rows behind it, a *group*. They see nearly the same keys, so each key is read once for
all of them, and a mask takes from each row what it does not see.

    rows     0 1 2 | 3 | 4 5 6 7 8 |         of three seats, and four rows to a tile
    groups   0 . .   3   4 . . . 8           the programs of other rows end at once

Groups are found on the device, from the seats of the rows: a captured graph serves any division of its rows among
requests, also that of one row each.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.arrivals import arrives_last
from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.decode.readers import SEPARATE, Reader
from facet.kernels.paged_attention.decode.shares import keys_per_share, merge_group
from facet.kernels.paged_attention.decode.tuning import DecodeTuning
from facet.kernels.paged_attention.tiles import (
    LEAST_TILE,
    common_arguments,
    load_queries,
    running_softmax,
    score_separate,
)

# Rows before one that are looked at. Of longer runs some rows are computed twice, which changes nothing.
_LOOKED_BACK = 64


@triton.jit
def _group_of(seats, entry, num_rows, ROWS: tl.constexpr, LOOKED_BACK: tl.constexpr):
    """(Whether a group begins with this row, its number of rows, the seat)."""
    seat = tl.load(seats + entry)
    before = entry - 1 - tl.arange(0, LOOKED_BACK)
    is_same = tl.load(seats + before, mask=before >= 0, other=-1) == seat
    behind = entry + tl.arange(0, ROWS)
    is_own = tl.load(seats + behind, mask=behind < num_rows, other=-1) == seat
    return tl.sum(is_same.to(tl.int32), axis=0) % ROWS == 0, tl.sum(is_own.to(tl.int32), axis=0), seat


# Not specialized: one kernel serves all batch sizes.
@triton.jit(
    do_not_specialize=["num_splits", "least_keys", "num_rows"],
    do_not_specialize_on_alignment=["block_table", "positions", "seats", "arrivals"],
)
def grouped_kernel(
    queries,
    keys,
    values,
    block_table,
    positions,
    seats,
    output,
    partial_results,  # of shares, where a group has more than one
    partial_levels,
    arrivals,  # of shares, zero before and after
    scale,
    window,
    num_rows,
    num_splits,
    least_keys,
    table_stride,
    page_stride,
    token_stride,
    num_heads,
    GROUP: tl.constexpr,  # query heads of a key head
    GROUP_PAD: tl.constexpr,
    ROWS: tl.constexpr,  # most rows of a group
    LOOKED_BACK: tl.constexpr,
    MERGED_SHARES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """One group, one key head, one share of the keys that its rows see."""
    BLOCK_M: tl.constexpr = GROUP_PAD * ROWS
    entry, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    is_first, count, seat = _group_of(seats, entry, num_rows, ROWS, LOOKED_BACK)
    first = tl.load(positions + entry) + 1
    context_len = tl.load(positions + entry + count - 1) + 1
    first = tl.maximum(first - window, 0) if HAS_WINDOW else first * 0
    start_after_previous(IS_DEPENDENT)
    if not is_first:
        return
    share = keys_per_share(context_len - first, num_splits, least_keys, BLOCK_N)
    start = first + split * share
    end = tl.minimum(start + share, context_len)
    if start >= end:
        return

    members = tl.arange(0, BLOCK_M)
    rows, heads = entry + members // GROUP_PAD, kv_head * GROUP + members % GROUP_PAD
    is_member = (members // GROUP_PAD < count) & (members % GROUP_PAD < GROUP)
    ends = tl.load(positions + rows, mask=is_member, other=0) + 1
    firsts = tl.maximum(ends - window, 0) if HAS_WINDOW else ends * 0
    vectors = rows.to(tl.int64) * num_heads + heads
    block_row = block_table + seat.to(tl.int64) * table_stride
    query, _low, _high = load_queries(queries, vectors, is_member, queries, False, 1, 16, HEAD_DIM)
    total = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    greatest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    for offset in range(start, end, BLOCK_N):
        places = offset + tl.arange(0, BLOCK_N)
        is_live = places < end
        scores, value = score_separate(
            query, places, is_live, keys, values, block_row, page_stride, token_stride, kv_head * HEAD_DIM, HEAD_DIM,
            TOKENS_PER_BLOCK,
        )  # fmt: skip
        is_seen = is_live[None, :] & (places[None, :] < ends[:, None])
        if HAS_WINDOW:
            is_seen = is_seen & (places[None, :] >= firsts[:, None])
        scores = tl.where(is_seen, scores * scale, float("-inf"))
        weights, shrink, greatest, weight_sum = running_softmax(scores, greatest, weight_sum)
        total = tl.dot(weights.to(value.dtype), value, total * shrink[:, None], input_precision="ieee")

    # A row may see nothing of a share that others do: its level is then minus infinity, and zeros are left there.
    weight_sum = tl.where(weight_sum > 0.0, weight_sum, 1.0)
    means = total * (1.0 / weight_sum)[:, None]
    dims = tl.arange(0, HEAD_DIM)
    num_shares = tl.cdiv(context_len - first, share)
    if IS_WHOLE or num_shares == 1:
        pointers = output + vectors[:, None] * HEAD_DIM + dims[None, :]
        tl.store(pointers, means.to(output.dtype.element_ty), mask=is_member[:, None])
    else:
        left = vectors * num_splits + split
        tl.store(partial_results + left[:, None] * HEAD_DIM + dims[None, :], means, mask=is_member[:, None])
        tl.store(partial_levels + left, greatest + tl.log(weight_sum), mask=is_member)
        is_last = arrives_last(arrivals, entry * (num_heads // GROUP) + kv_head, num_shares)
        if is_last:
            for number in range(count):
                row = entry + number
                merge_group(
                    partial_results, partial_levels, output, row, row, kv_head, num_heads, num_splits, num_shares,
                    GROUP, GROUP_PAD, HEAD_DIM, MERGED_SHARES,
                )  # fmt: skip


def rows_of_group(num_heads: int, num_kv_heads: int) -> int:
    """The most that a tile takes."""
    return LEAST_TILE // int(triton.next_power_of_2(num_heads // num_kv_heads))


def gains_by_groups(reader: Reader, queries: Tensor, cache: LayerCache, plan: DecodePlan, tuning: DecodeTuning) -> bool:
    """Whether rows of drafts should read their keys together: where more programs than fit wait for memory.

    Fewer rows wait for one thing after the other, and are the quicker the more programs there are.
    """
    return (
        plan.may_share_seats
        and reader is SEPARATE
        and not cache.is_quantized
        and not cache.is_shared
        and queries.element_size() == 2
        and tuning.is_full
        and (tuning.num_splits == 1 or tuning.last_merges)
        and rows_of_group(queries.shape[1], cache.keys.shape[2]) > 1
    )


def attend_groups(
    queries: Tensor, output: Tensor, cache: LayerCache, plan: DecodePlan, scale: float, tuning: DecodeTuning
) -> None:
    """Write the output of all rows; those of one seat lie together, in order."""
    assert plan.row_map is None, "all rows of a step without prompts"
    assert cache.values is not None, "keys and values are separate"
    no_recipe: KeyRecipe | None = None
    strides, constants, _, _ = common_arguments(queries, cache, plan.rows, no_recipe)
    (num_heads, head_dim), num_kv_heads = queries.shape[1:], cache.keys.shape[2]
    results, levels = output, output
    if tuning.num_splits > 1:
        per_share = (plan.num_rows, num_heads, tuning.num_splits)
        results = torch.empty(*per_share, head_dim, dtype=torch.float32, device=queries.device)
        levels = torch.empty(per_share, dtype=torch.float32, device=queries.device)
    grouped_kernel[(plan.num_rows, num_kv_heads, tuning.num_splits)](
        queries,
        cache.keys,
        cache.values,
        plan.rows.block_table,
        plan.rows.positions,
        plan.rows.seats,
        output,
        results,
        levels,
        plan.arrivals,
        scale,
        plan.rows.window,
        plan.num_rows,
        tuning.num_splits,
        tuning.least_keys,
        **{name: strides[name] for name in ("table_stride", "page_stride", "token_stride", "num_heads")},
        **{name: constants[name] for name in ("GROUP", "HAS_WINDOW", "HEAD_DIM", "TOKENS_PER_BLOCK")},
        GROUP_PAD=triton.next_power_of_2(int(constants["GROUP"])),
        ROWS=rows_of_group(num_heads, num_kv_heads),
        LOOKED_BACK=_LOOKED_BACK,
        MERGED_SHARES=tuning.merged_shares,
        IS_WHOLE=tuning.num_splits == 1,
        BLOCK_N=tuning.keys_per_tile,
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
        **launch_options(queries.device),
    )
