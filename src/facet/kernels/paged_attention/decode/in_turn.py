"""Decodes rows in shares that follow from their contexts alone, each program taking several in turn.

A share is what sums are made of. Where a row has one program, that adds share after share to what it has and writes the
result; where it has several, they leave their shares behind, and whoever finishes last adds them in the same way and in
the same order. So a row's bits do not depend on how many programs it has. Tiles of one share follow those of another in
one loop, so that loads never wait for a share's end.

Rows of drafts may be computed in groups, as in `grouped.py`, and to the same bits as alone: where there are drafts, the
shares of a window begin at multiples of their size, so that rows behind each other have the same ones, and what a row
does not see of a share weighs nothing.
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
from facet.kernels.paged_attention.decode.shares import visible_keys
from facet.kernels.paged_attention.decode.tuning import DecodeTuning
from facet.kernels.paged_attention.tiles import (
    LEAST_TILE,
    common_arguments,
    load_queries,
    running_softmax,
    score_separate,
)

# Shares of rows without a window, whose heads may be twice as wide: more would not fit into registers.
_SHARES_AT_ONCE = 8
# Rows before one that are looked at, of which it may be the next in a group. Of longer runs some rows are computed
# twice, which changes nothing.
_LOOKED_BACK = 64


@triton.jit
def _size_of_shares(num_keys, num_splits, least_keys, HAS_WINDOW: tl.constexpr):
    """How many keys a share has: fixed within a window, else it grows with the keys: what many shares leave behind has
    to be read again by one program. 8 x 8K of E4B: 109 us in 64 shares, 90 in 32 and 80 in 16; but one long context
    needs many programs."""
    share = num_keys * 0 + least_keys
    if not HAS_WINDOW:
        share = tl.where(num_keys > 16 * least_keys, 2 * least_keys, share)
        share = tl.where(num_keys > 32 * least_keys, 4 * least_keys, share)
        for _doubling in tl.static_range(16):
            share = tl.where(num_keys > num_splits * share, 2 * share, share)
    return share


@triton.jit
def _group_of(
    positions, seats, entry, num_rows, num_splits, least_keys,
    HAS_WINDOW: tl.constexpr, ROWS: tl.constexpr, LOOKED_BACK: tl.constexpr,
):  # fmt: skip
    """(Whether a group begins with this row, its number of rows). All of a group are of one seat, and have shares of
    one size."""
    seat = tl.load(seats + entry)
    share = _size_of_shares(tl.load(positions + entry) + 1, num_splits, least_keys, HAS_WINDOW)
    before = entry - 1 - tl.arange(0, LOOKED_BACK)
    is_same = tl.load(seats + before, mask=before >= 0, other=-1) == seat
    sizes = _size_of_shares(
        tl.load(positions + before, mask=before >= 0, other=0) + 1, num_splits, least_keys, HAS_WINDOW
    )
    num_before = tl.sum((is_same & (sizes == share)).to(tl.int32), axis=0)
    behind = entry + tl.arange(0, ROWS)
    is_own = tl.load(seats + behind, mask=behind < num_rows, other=-1) == seat
    sizes = _size_of_shares(
        tl.load(positions + behind, mask=behind < num_rows, other=0) + 1, num_splits, least_keys, HAS_WINDOW
    )
    return num_before % ROWS == 0, tl.sum((is_own & (sizes == share)).to(tl.int32), axis=0)


@triton.jit
def add_share(merged, greatest, weight_sum, total, share_greatest, share_sum):
    """(Sums of weighted values, greatest score, sum of weights) with those of one share more.

    Every rounding is written out: no compiler may choose others in another kernel. A share of which nothing is seen
    changes nothing.
    """
    new_greatest = tl.maximum(greatest, share_greatest)
    anchor = tl.where(new_greatest == float("-inf"), 0.0, new_greatest)
    shrink, share_shrink = tl.exp(greatest - anchor), tl.exp(share_greatest - anchor)
    merged = tl.fma(merged, shrink[:, None], total * share_shrink[:, None])
    return merged, new_greatest, tl.fma(weight_sum, shrink, share_sum * share_shrink)


@triton.jit
def _add_left_shares(
    partial_totals, partial_levels, output, entry, row, kv_head, num_heads, num_splits, num_shares,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, HEAD_DIM: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """All shares of one row and key head, from where their programs left them.

    The inner loop is unrolled for its loads to be on their way at once. They pass by the first-level cache, which is
    not told of others' stores.
    """
    members = tl.arange(0, GROUP_PAD)
    dims = tl.arange(0, HEAD_DIM)
    heads = kv_head * GROUP + members
    places = (entry.to(tl.int64) * num_heads + heads) * num_splits
    merged = tl.zeros([GROUP_PAD, HEAD_DIM], tl.float32)
    greatest = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    weight_sum = tl.zeros([GROUP_PAD], tl.float32)
    for first_share in range(0, num_shares, AT_ONCE):
        for step in tl.static_range(AT_ONCE):
            share = first_share + step
            is_live = (members < GROUP) & (num_shares > share)
            levels = partial_levels + 2 * (places + share)
            share_greatest = tl.load(levels, mask=is_live, other=0.0, cache_modifier=".cg")
            share_sum = tl.load(levels + 1, mask=is_live, other=0.0, cache_modifier=".cg")
            pointers = partial_totals + (places + share)[:, None] * HEAD_DIM + dims[None, :]
            total = tl.load(pointers, mask=is_live[:, None], other=0.0, cache_modifier=".cg")
            with_share, new_greatest, new_sum = add_share(
                merged, greatest, weight_sum, total, share_greatest, share_sum
            )
            merged = tl.where(is_live[:, None], with_share, merged)
            greatest = tl.where(is_live, new_greatest, greatest)
            weight_sum = tl.where(is_live, new_sum, weight_sum)
    is_member = members < GROUP
    pointers = output + (row.to(tl.int64) * num_heads + heads)[:, None] * HEAD_DIM + dims[None, :]
    means = merged / tl.where(is_member, weight_sum, 1.0)[:, None]
    tl.store(pointers, means.to(output.dtype.element_ty), mask=is_member[:, None])


# Not specialized: one kernel serves all batch sizes.
@triton.jit(
    do_not_specialize=["num_rows", "num_splits", "least_keys", "program_keys"],
    do_not_specialize_on_alignment=["block_table", "positions", "seats", "row_map", "arrivals"],
)
def in_turn_kernel(
    queries,
    keys,
    values,
    block_table,
    positions,
    seats,
    row_map,
    output,
    partial_totals,  # of shares, where a row has more than one program
    partial_levels,  # the greatest score, and the sum of weights
    arrivals,  # of programs, zero before and after
    scale,
    window,
    num_rows,
    num_splits,
    least_keys,
    program_keys,  # a program has no fewer, if the row has them
    table_stride,
    page_stride,
    token_stride,
    num_heads,
    HAS_MAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_ANCHORED: tl.constexpr,  # shares begin at multiples of their size, not with the first key that is seen
    ROWS: tl.constexpr,  # most rows of a group; without groups 1
    LOOKED_BACK: tl.constexpr,
    ADDS: tl.constexpr,  # a row has one program, which adds its shares itself
    AT_ONCE: tl.constexpr,  # shares that the last program loads together
    ONE_TILE: tl.constexpr,  # is a share
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """One row or group of rows, one key head, some of the shares. The rows of the product are the query heads that have
    the key head, those of each row of the group."""
    entry, kv_head, program = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(row_map + entry) if HAS_MAP else entry
    first, context_len = visible_keys(positions, row, window, HAS_WINDOW)
    is_first, count = True, 1
    if ROWS > 1:
        is_first, count = _group_of(
            positions, seats, entry, num_rows, num_splits, least_keys, HAS_WINDOW, ROWS, LOOKED_BACK
        )
    share = _size_of_shares(context_len - first, num_splits, least_keys, HAS_WINDOW)
    if ROWS > 1:
        context_len = tl.load(positions + entry + count - 1) + 1
    block_row = block_table + tl.load(seats + row).to(tl.int64) * table_stride
    start_after_previous(IS_DEPENDENT)
    if not is_first:
        return
    base = first // share * share if IS_ANCHORED else first
    num_shares = tl.cdiv(context_len - base, share)
    shares_per_program = tl.maximum(tl.cdiv(num_shares, tl.num_programs(2)), program_keys // share)
    number = program * shares_per_program
    start = base + number * share
    end = tl.minimum(start + shares_per_program * share, context_len)
    if start >= end:
        return

    members = tl.arange(0, BLOCK_M)
    if ROWS > 1:
        is_member = (members // GROUP_PAD < count) & (members % GROUP_PAD < GROUP)
        rows, heads = entry + members // GROUP_PAD, kv_head * GROUP + members % GROUP_PAD
        firsts, ends = visible_keys(positions, tl.where(is_member, rows, entry), window, HAS_WINDOW)
        first_shares = (firsts // share * share - base) // share  # of each row, among those of the group
        vectors = rows.to(tl.int64) * num_heads + heads
        places = vectors * num_splits - first_shares
    else:
        is_member = members < GROUP
        heads = kv_head * GROUP + members
        vectors = row.to(tl.int64) * num_heads + heads
        places = (entry.to(tl.int64) * num_heads + heads) * num_splits
    dims = tl.arange(0, HEAD_DIM)
    query, _low, _high = load_queries(queries, vectors, is_member, queries, False, 1, 16, HEAD_DIM)
    total = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    greatest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    merged, greatest_of_all, sum_of_all = total, greatest, weight_sum
    share_end = start + share
    for offset in range(start, end, BLOCK_N):
        keys_of_tile = offset + tl.arange(0, BLOCK_N)
        is_live = keys_of_tile < end
        if IS_ANCHORED:
            is_live = is_live & (keys_of_tile >= first)
        scores, value = score_separate(
            query, keys_of_tile, is_live, keys, values, block_row, page_stride, token_stride, kv_head * HEAD_DIM,
            HEAD_DIM, TOKENS_PER_BLOCK,
        )  # fmt: skip
        is_seen = is_live[None, :]
        if ROWS > 1:
            is_seen = is_seen & (keys_of_tile[None, :] < ends[:, None]) & (keys_of_tile[None, :] >= firsts[:, None])
        scores = tl.where(is_seen, scores * scale, float("-inf"))
        if ONE_TILE:
            greatest = tl.max(scores, axis=1)
            anchor = tl.where(greatest == float("-inf"), 0.0, greatest)
            weights = tl.exp(scores - anchor[:, None])
            weight_sum = tl.sum(weights, axis=1)
            total = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        else:
            begins = offset + share == share_end
            greatest = tl.where(begins, float("-inf"), greatest)
            weights, shrink, greatest, weight_sum = running_softmax(scores, greatest, weight_sum)
            total = tl.where(begins, 0.0, total * shrink[:, None])
            total = tl.dot(weights.to(value.dtype), value, total, input_precision="ieee")
        if ONE_TILE or offset + BLOCK_N >= tl.minimum(share_end, end):
            if ADDS:
                merged, greatest_of_all, sum_of_all = add_share(
                    merged, greatest_of_all, sum_of_all, total, greatest, weight_sum
                )
            else:
                is_left = is_member
                if ROWS > 1:
                    is_left = is_left & (number >= first_shares) & (share_end - share < ends)
                pointers = partial_totals + (places + number)[:, None] * HEAD_DIM + dims[None, :]
                tl.store(pointers, total, mask=is_left[:, None])
                levels = partial_levels + 2 * (places + number)
                tl.store(levels, greatest, mask=is_left)
                tl.store(levels + 1, weight_sum, mask=is_left)
                number += 1
            share_end += share
    if ADDS or num_shares == 1:
        if not ADDS:
            merged, sum_of_all = total, weight_sum
        pointers = output + vectors[:, None] * HEAD_DIM + dims[None, :]
        means = merged / tl.where(is_member, sum_of_all, 1.0)[:, None]
        tl.store(pointers, means.to(output.dtype.element_ty), mask=is_member[:, None])
    else:
        num_arriving = tl.cdiv(num_shares, shares_per_program)
        is_last = arrives_last(arrivals, entry * (num_heads // GROUP) + kv_head, num_arriving)
        if is_last:
            for place in range(count):
                own_first, own_end = visible_keys(positions, row + place, window, HAS_WINDOW)
                own_base = own_first // share * share if IS_ANCHORED else own_first
                _add_left_shares(
                    partial_totals, partial_levels, output, entry + place, row + place, kv_head, num_heads, num_splits,
                    tl.cdiv(own_end - own_base, share), GROUP, GROUP_PAD, HEAD_DIM, AT_ONCE,
                )  # fmt: skip


def can_take_turns(reader: Reader, cache: LayerCache) -> bool:
    """Whether this kernel reads such a cache."""
    return reader is SEPARATE and not cache.is_quantized and not cache.is_shared


def attend_in_turn(
    queries: Tensor, output: Tensor, cache: LayerCache, plan: DecodePlan, scale: float, tuning: DecodeTuning
) -> None:
    """Write the rows of `output` that the plan names."""
    assert cache.values is not None, "keys and values are separate"
    rows, num_splits = plan.rows, tuning.num_splits
    no_recipe: KeyRecipe | None = None
    strides, constants, _, _ = common_arguments(queries, cache, rows, no_recipe)
    (num_heads, head_dim), num_kv_heads = queries.shape[1:], cache.keys.shape[2]
    adds = rows.window > 0 and tuning.num_programs == 1
    totals, levels = output, output
    if not adds:
        per_share = (plan.num_rows, num_heads, num_splits)
        totals = torch.empty(*per_share, head_dim, dtype=torch.float32, device=queries.device)
        levels = torch.empty(*per_share, 2, dtype=torch.float32, device=queries.device)
    group_pad = triton.next_power_of_2(int(constants["GROUP"]))
    in_turn_kernel[(plan.num_rows, num_kv_heads, tuning.num_programs)](
        queries,
        cache.keys,
        cache.values,
        rows.block_table,
        rows.positions,
        rows.seats,
        plan.map_or_any,
        output,
        totals,
        levels,
        plan.arrivals,
        scale,
        rows.window,
        plan.num_rows,
        num_splits,
        tuning.least_keys,
        tuning.program_keys,
        **{name: strides[name] for name in ("table_stride", "page_stride", "token_stride", "num_heads")},
        **{name: constants[name] for name in ("GROUP", "HAS_WINDOW", "HEAD_DIM", "TOKENS_PER_BLOCK")},
        HAS_MAP=plan.row_map is not None,
        IS_ANCHORED=plan.is_anchored,
        ROWS=tuning.rows_of_group,
        LOOKED_BACK=_LOOKED_BACK,
        ADDS=adds,
        AT_ONCE=num_splits if rows.window else _SHARES_AT_ONCE,
        ONE_TILE=rows.window > 0 and tuning.least_keys == tuning.keys_per_tile,
        GROUP_PAD=group_pad,
        BLOCK_M=max(LEAST_TILE, group_pad),
        BLOCK_N=tuning.keys_per_tile,
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
        **launch_options(queries.device),
    )
