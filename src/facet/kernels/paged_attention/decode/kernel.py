"""Attention of single rows, which is what decoding looks like: split over keys, then put together.

The grid depends on shapes alone, so that a captured graph serves every context up to the longest it was made for. How
many keys a share has is decided on the device, from the row's own position: shares beyond the last key are never run,
and a row that is one share goes to the output as it is. The shares of a row are put together by the program that
finishes last, or, where they are many, by a second kernel.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.decode.separate_8bit import attend_values
from facet.kernels.paged_attention.decode.shared import attend_pieces
from facet.kernels.paged_attention.decode.shared_8bit import attend_derived
from facet.kernels.paged_attention.decode.shares import (
    arrives_last,
    keys_per_share,
    merge_group,
    merge_shares_kernel,
    visible_keys,
)
from facet.kernels.paged_attention.decode.tuning import MOST_MERGED_BY_LAST, Tuning, choose_tuning
from facet.kernels.paged_attention.plans import TritonPlan
from facet.kernels.paged_attention.tiles import (
    LEAST_TILE,
    attend_tiles,
    common_arguments,
    load_queries,
)


@triton.jit
def _store_dims(total, target, places, is_member, FIRST: tl.constexpr, SIZE: tl.constexpr):
    pointers = target + places[:, None] + (FIRST + tl.arange(0, SIZE))[None, :]
    tl.store(pointers, total.to(target.dtype.element_ty), mask=is_member[:, None])


@triton.jit
def _store_means(totals, weight_sum, target, vectors, is_member, SIX_PIECES: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Whole vectors, in one piece or in six."""
    places = vectors * HEAD_DIM
    factor = (1.0 / weight_sum)[:, None]
    if SIX_PIECES:
        P: tl.constexpr = HEAD_DIM // 8
        _store_dims(totals[0] * factor, target, places, is_member, 0, P)
        _store_dims(totals[1] * factor, target, places, is_member, P, P)
        _store_dims(totals[2] * factor, target, places, is_member, 2 * P, 2 * P)
        _store_dims(totals[3] * factor, target, places, is_member, 4 * P, P)
        _store_dims(totals[4] * factor, target, places, is_member, 5 * P, P)
        _store_dims(totals[5] * factor, target, places, is_member, 6 * P, 2 * P)
    else:
        SIZE: tl.constexpr = HEAD_DIM // len(totals)
        for piece in tl.static_range(len(totals)):
            _store_dims(totals[piece] * factor, target, places, is_member, piece * SIZE, SIZE)


# Not specialized: one kernel serves all batch sizes.
@triton.jit(do_not_specialize=["num_splits", "least_keys"])
def _single_row_kernel(
    queries,
    keys,
    values,
    block_table,
    positions,
    seats,
    single_rows,
    key_weight,
    cos_sin,
    output,
    partial_results,  # of shares, where a row has more than one
    partial_levels,
    arrivals,  # of shares, zero before and after
    key_scales,
    value_scales,
    scale,
    window,
    num_splits,
    least_keys,
    table_stride,
    page_stride,
    token_stride,
    scale_page_stride,
    scale_token_stride,
    scale_head_stride,
    num_heads,
    HAS_MAP: tl.constexpr,
    GROUP: tl.constexpr,
    MERGED_SHARES: tl.constexpr,  # most that the last program puts together; 0: it does not
    IS_WHOLE: tl.constexpr,  # there is one share
    EXITS_EARLY: tl.constexpr,
    SIX_PIECES: tl.constexpr,
    KEYS_FIRST: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    SETTLES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    VALUES_ARE_KEYS: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    PAIRS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """One sequence, one key head, one share of its keys. The rows of the product are the query heads of the group."""
    entry, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(single_rows + entry) if HAS_MAP else entry
    first, context_len = visible_keys(positions, row, window, HAS_WINDOW)
    table_row = block_table + tl.load(seats + row).to(tl.int64) * table_stride
    start_after_previous(IS_DEPENDENT)
    members = tl.arange(0, BLOCK_M)
    is_member = members < GROUP
    heads = kv_head * GROUP + members
    rows = row.to(tl.int64) * num_heads + heads
    if not SIX_PIECES and not KEYS_FIRST:
        query, low_queries, high_queries = load_queries(
            queries, rows, is_member, key_weight, VALUES_ARE_KEYS, NUM_PAIRS, PAIRS_PAD, HEAD_DIM
        )
    share = keys_per_share(context_len - first, num_splits, least_keys, BLOCK_N)
    start = first + split * share
    end = tl.minimum(start + share, context_len)
    if EXITS_EARLY and start >= end:
        return

    if KEYS_FIRST and not VALUES_ARE_KEYS:
        totals, greatest, weight_sum = attend_values(
            queries, rows, is_member, start, end, keys, values, table_row, page_stride, token_stride,
            kv_head * HEAD_DIM, key_scales + kv_head * scale_head_stride, value_scales + kv_head * scale_head_stride,
            scale_page_stride, scale_token_stride, scale, HAS_SCALES, HEAD_DIM, TOKENS_PER_BLOCK, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    elif KEYS_FIRST:
        totals, greatest, weight_sum = attend_derived(
            queries, rows, is_member, start, end, values, table_row, page_stride, token_stride, kv_head * HEAD_DIM,
            key_scales + kv_head * scale_head_stride, scale_page_stride, scale_token_stride, scale, key_weight, cos_sin,
            HAS_SCALES, NUM_PAIRS, HEAD_DIM, TOKENS_PER_BLOCK, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    elif SIX_PIECES:
        total_0, total_1, total_2, total_3, total_4, total_5, greatest, weight_sum = attend_pieces(
            queries, rows, is_member, start, end, values, table_row, page_stride, token_stride, kv_head * HEAD_DIM,
            key_scales + kv_head * scale_head_stride, scale_page_stride, scale_token_stride, scale, key_weight, cos_sin,
            HAS_SCALES, SETTLES, NUM_PAIRS, TOKENS_PER_BLOCK, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        totals = (total_0, total_1, total_2, total_3, total_4, total_5)
    else:
        query_positions = tl.zeros([BLOCK_M], tl.int32) + (context_len - 1)
        # Every key of the share lies in the window: no mask is needed for it.
        total, greatest, weight_sum = attend_tiles(
            query, low_queries, high_queries, query_positions, first, start, end, keys, values, table_row, page_stride,
            token_stride, kv_head * HEAD_DIM, key_scales + kv_head * scale_head_stride,
            value_scales + kv_head * scale_head_stride, scale_page_stride, scale_token_stride, scale, window,
            key_weight, cos_sin, HAS_SCALES, SETTLES, False, VALUES_ARE_KEYS, NUM_PAIRS, PAIRS_PAD, HEAD_DIM,
            TOKENS_PER_BLOCK, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        totals = (total,)
    if not IS_WHOLE and start >= end:
        return

    if IS_WHOLE:
        _store_means(totals, weight_sum, output, rows, is_member, SIX_PIECES, HEAD_DIM)
    else:
        num_shares = tl.cdiv(context_len - first, share)
        if num_shares == 1:
            _store_means(totals, weight_sum, output, rows, is_member, SIX_PIECES, HEAD_DIM)
        else:
            places = (entry.to(tl.int64) * num_heads + heads) * num_splits
            _store_means(totals, weight_sum, partial_results, places + split, is_member, SIX_PIECES, HEAD_DIM)
            tl.store(partial_levels + places + split, greatest + tl.log(weight_sum), mask=is_member)
            if MERGED_SHARES > 0:
                is_last = arrives_last(arrivals, entry * (num_heads // GROUP) + kv_head, num_shares)
                if is_last:
                    merge_group(
                        partial_results, partial_levels, output, entry, row, kv_head, num_heads, num_splits, num_shares,
                        GROUP, GROUP_PAD, HEAD_DIM, MERGED_SHARES,
                    )  # fmt: skip


def attend_single_rows(
    queries: Tensor,
    output: Tensor,
    cache: LayerCache,
    plan: TritonPlan,
    scale: float,
    key_recipe: KeyRecipe | None,
    tuning: Tuning | None = None,
) -> None:
    """Write the rows of `output` that are single. Another `tuning` than the chosen one is for measuring."""
    strides, constants, weight, cos_sin = common_arguments(queries, cache, plan, key_recipe)
    tuning = tuning or choose_tuning(queries, cache, plan, key_recipe)
    num_heads, head_dim = queries.shape[1:]
    num_entries, num_kv_heads, num_splits = plan.num_single, cache.keys.shape[2], tuning.num_splits
    shared = dict(
        window=plan.window,
        num_splits=num_splits,
        least_keys=tuning.least_keys,
        HAS_MAP=plan.single_rows is not None,
        HAS_WINDOW=plan.window > 0,
        BLOCK_N=tuning.keys_per_tile,
        HEAD_DIM=head_dim,
        **launch_options(queries.device),
    )
    single_rows = plan.positions if plan.single_rows is None else plan.single_rows  # read only where it is a map
    results, levels = output, output
    if num_splits > 1:
        per_share = (num_entries, num_heads, num_splits)
        results = torch.empty(*per_share, head_dim, dtype=torch.float32, device=queries.device)
        levels = torch.empty(per_share, dtype=torch.float32, device=queries.device)
    # Two sizes, so that few kernels serve all batch sizes.
    merged_shares = 0 if num_splits == 1 or not tuning.last_merges else 4 if num_splits <= 4 else MOST_MERGED_BY_LAST
    assert merged_shares == 0 or num_splits <= merged_shares, "more shares than the last program puts together"
    group_pad = triton.next_power_of_2(int(constants["GROUP"]))
    _single_row_kernel[(num_entries, num_kv_heads, num_splits)](
        queries,
        cache.keys,
        cache.keys if cache.values is None else cache.values,
        plan.block_table,
        plan.positions,
        plan.seats,
        single_rows,
        weight,
        cos_sin,
        output,
        results,
        levels,
        plan.arrivals,
        levels if cache.key_scales is None else cache.key_scales,  # read only where there are scales
        levels if cache.value_scales is None else cache.value_scales,
        scale,
        **strides,
        **(constants | shared),
        MERGED_SHARES=merged_shares,
        IS_WHOLE=num_splits == 1,
        EXITS_EARLY=tuning.exits_early and num_splits > 1,
        SIX_PIECES=tuning.six_pieces and not tuning.keys_first,
        KEYS_FIRST=tuning.keys_first,
        SETTLES=tuning.settles,
        BLOCK_M=max(8 if tuning.keys_first and cache.values is not None else LEAST_TILE, group_pad),
        GROUP_PAD=group_pad,
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
    if num_splits > 1 and not tuning.last_merges:
        # As many shares at a step as there may be, as long as a program holds them.
        shares_per_step, dims_per_merge = (32, 128) if num_splits <= 32 else (128, 32)
        dims_per_merge = min(head_dim, dims_per_merge)
        merge_shares_kernel[(num_entries, num_heads, head_dim // dims_per_merge)](
            results,
            levels,
            plan.positions,
            single_rows,
            output,
            num_heads=num_heads,
            **shared,
            SHARES=shares_per_step,
            DIMS=dims_per_merge,
            num_warps=4,
        )
