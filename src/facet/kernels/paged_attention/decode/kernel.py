"""The kernel of decoded rows: each row is split over its keys, and the results are combined.

The grid depends on shapes alone, so that a captured graph serves every context up to the longest it was made for. How
many keys a share has is decided on the device, from the row's own position: shares beyond the last key are never run,
and a row that is one share goes to the output as it is. A program has one share, or takes several in turn. The shares
of a row are put together by the program that finishes last, or, where they are many, by a second kernel.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.arrivals import arrives_last
from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.decode.readers import Reader
from facet.kernels.paged_attention.decode.shares import (
    keys_per_share,
    merge_group,
    merge_rows,
    visible_keys,
)
from facet.kernels.paged_attention.decode.tuning import DecodeTuning
from facet.kernels.paged_attention.tiles import common_arguments


@triton.jit
def _store_means(totals, weight_sum, target, vectors, is_member, HEAD_DIM: tl.constexpr):
    """Stores whole vectors, segment by segment."""
    places = vectors * HEAD_DIM
    factor = (1.0 / weight_sum)[:, None]
    first_dim = 0
    for segment in tl.static_range(len(totals)):
        means = totals[segment] * factor
        pointers = target + places[:, None] + (first_dim + tl.arange(0, means.shape[1]))[None, :]
        tl.store(pointers, means.to(target.dtype.element_ty), mask=is_member[:, None])
        first_dim += means.shape[1]


@triton.jit
def _leave_share(
    totals, greatest, weight_sum, partial_results, partial_levels, entry, heads, is_member, num_heads, num_splits,
    share, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Stores a share for the program that puts the shares of the row together."""
    places = (entry.to(tl.int64) * num_heads + heads) * num_splits + share
    _store_means(totals, weight_sum, partial_results, places, is_member, HEAD_DIM)
    tl.store(partial_levels + places, greatest + tl.log(weight_sum), mask=is_member)


@triton.jit
def _merge_if_last(
    partial_results, partial_levels, arrivals, output, entry, row, kv_head, num_heads, num_splits, num_shares,
    num_arriving, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, HEAD_DIM: tl.constexpr, MERGED_SHARES: tl.constexpr,
):  # fmt: skip
    """Puts the shares of the row together, in the last of the `num_arriving` programs that have them."""
    is_last = arrives_last(arrivals, entry * (num_heads // GROUP) + kv_head, num_arriving)
    if is_last:
        merge_group(
            partial_results, partial_levels, output, entry, row, kv_head, num_heads, num_splits, num_shares, GROUP,
            GROUP_PAD, HEAD_DIM, MERGED_SHARES,
        )  # fmt: skip


# Not specialized: one kernel serves all batch sizes.
@triton.jit(
    do_not_specialize=["num_splits", "least_keys"],
    do_not_specialize_on_alignment=["block_table", "positions", "seats", "row_map", "arrivals"],
)
def _decode_kernel(
    queries,
    keys,
    values,
    block_table,
    positions,
    seats,
    row_map,
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
    ATTEND: tl.constexpr,  # one of `readers.py`
    HAS_MAP: tl.constexpr,
    GROUP: tl.constexpr,
    MERGED_SHARES: tl.constexpr,  # most that the last program puts together; 0: it does not
    IS_WHOLE: tl.constexpr,  # there is one share
    IN_TURN: tl.constexpr,  # a program takes several shares
    EXITS_EARLY: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SHARED: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    PAIRS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """One row, one key head, some of its shares. The rows of the product are the query heads of the group."""
    entry, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(row_map + entry) if HAS_MAP else entry
    first, context_len = visible_keys(positions, row, window, HAS_WINDOW)
    block_row = block_table + tl.load(seats + row).to(tl.int64) * table_stride
    start_after_previous(IS_DEPENDENT)
    members = tl.arange(0, BLOCK_M)
    is_member = members < GROUP
    heads = kv_head * GROUP + members
    vectors = row.to(tl.int64) * num_heads + heads
    share = keys_per_share(context_len - first, num_splits, least_keys, BLOCK_N)
    if IN_TURN:
        num_shares = tl.cdiv(context_len - first, share)
        shares_per_program = tl.cdiv(num_shares, tl.num_programs(2))
        first_share = split * shares_per_program
        if first_share >= num_shares:
            return
        for number in range(first_share, tl.minimum(first_share + shares_per_program, num_shares)):
            start = first + number * share
            end = tl.minimum(start + share, context_len)
            totals, greatest, weight_sum = ATTEND(
                queries, vectors, is_member, start, end, keys, values, block_row, page_stride, token_stride,
                kv_head * HEAD_DIM, key_scales + kv_head * scale_head_stride,
                value_scales + kv_head * scale_head_stride, scale_page_stride, scale_token_stride, scale, key_weight,
                cos_sin, HAS_SCALES, SHARED, NUM_PAIRS, PAIRS_PAD, HEAD_DIM, TOKENS_PER_BLOCK, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            if num_shares == 1:
                _store_means(totals, weight_sum, output, vectors, is_member, HEAD_DIM)
            else:
                _leave_share(
                    totals, greatest, weight_sum, partial_results, partial_levels, entry, heads, is_member, num_heads,
                    num_splits, number, HEAD_DIM,
                )  # fmt: skip
        if MERGED_SHARES > 0 and num_shares > 1:
            _merge_if_last(
                partial_results, partial_levels, arrivals, output, entry, row, kv_head, num_heads, num_splits,
                num_shares, tl.cdiv(num_shares, shares_per_program), GROUP, GROUP_PAD, HEAD_DIM, MERGED_SHARES,
            )  # fmt: skip
        return

    start = first + split * share
    end = tl.minimum(start + share, context_len)
    if EXITS_EARLY and start >= end:
        return

    totals, greatest, weight_sum = ATTEND(
        queries, vectors, is_member, start, end, keys, values, block_row, page_stride, token_stride, kv_head * HEAD_DIM,
        key_scales + kv_head * scale_head_stride, value_scales + kv_head * scale_head_stride, scale_page_stride,
        scale_token_stride, scale, key_weight, cos_sin, HAS_SCALES, SHARED, NUM_PAIRS, PAIRS_PAD, HEAD_DIM,
        TOKENS_PER_BLOCK, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    if not IS_WHOLE and start >= end:
        return

    if IS_WHOLE:
        _store_means(totals, weight_sum, output, vectors, is_member, HEAD_DIM)
    else:
        num_shares = tl.cdiv(context_len - first, share)
        if num_shares == 1:
            _store_means(totals, weight_sum, output, vectors, is_member, HEAD_DIM)
        else:
            _leave_share(
                totals, greatest, weight_sum, partial_results, partial_levels, entry, heads, is_member, num_heads,
                num_splits, split, HEAD_DIM,
            )  # fmt: skip
            if MERGED_SHARES > 0:
                _merge_if_last(
                    partial_results, partial_levels, arrivals, output, entry, row, kv_head, num_heads, num_splits,
                    num_shares, num_shares, GROUP, GROUP_PAD, HEAD_DIM, MERGED_SHARES,
                )  # fmt: skip


def attend_rows(
    queries: Tensor,
    output: Tensor,
    cache: LayerCache,
    plan: DecodePlan,
    scale: float,
    key_recipe: KeyRecipe | None,
    reader: Reader,
    tuning: DecodeTuning,
) -> None:
    """Write the rows of `output` that the plan names."""
    rows = plan.rows
    strides, constants, weight, cos_sin = common_arguments(queries, cache, rows, key_recipe)
    num_heads, head_dim = queries.shape[1:]
    num_kv_heads, num_splits = cache.keys.shape[2], tuning.num_splits
    results, levels = output, output
    if num_splits > 1:
        per_share = (plan.num_rows, num_heads, num_splits)
        results = torch.empty(*per_share, head_dim, dtype=torch.float32, device=queries.device)
        levels = torch.empty(per_share, dtype=torch.float32, device=queries.device)
    group_pad = triton.next_power_of_2(int(constants["GROUP"]))
    _decode_kernel[(plan.num_rows, num_kv_heads, tuning.num_programs or num_splits)](
        queries,
        cache.keys,
        cache.keys if cache.values is None else cache.values,
        rows.block_table,
        rows.positions,
        rows.seats,
        plan.map_or_any,
        weight,
        cos_sin,
        output,
        results,
        levels,
        plan.arrivals,
        levels if cache.key_scales is None else cache.key_scales,  # read only where there are scales
        levels if cache.value_scales is None else cache.value_scales,
        scale,
        rows.window,
        num_splits,
        tuning.least_keys,
        **strides,
        **constants,
        ATTEND=reader.attend,
        HAS_MAP=plan.row_map is not None,
        MERGED_SHARES=tuning.merged_shares,
        IS_WHOLE=num_splits == 1,
        IN_TURN=tuning.num_programs is not None,
        EXITS_EARLY=tuning.exits_early and num_splits > 1,
        BLOCK_M=max(reader.least_heads, group_pad),
        BLOCK_N=tuning.keys_per_tile,
        GROUP_PAD=group_pad,
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
        **launch_options(queries.device),
    )
    if num_splits > 1 and not tuning.last_merges:
        merge_rows(output, results, levels, plan, tuning)
