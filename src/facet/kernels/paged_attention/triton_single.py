"""Attention of single rows, which is what decoding looks like: split over keys, then put together."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.plans import TritonPlan
from facet.kernels.paged_attention.triton_tiles import (
    LEAST_TILE,
    attend_tiles,
    common_arguments,
    keys_per_tile,
    load_queries,
)


@triton.jit
def _single_row_kernel(
    queries,
    keys,
    values,
    block_table,
    positions,
    table_rows,
    single_rows,
    key_weight,
    cos_sin,
    partial_totals,
    partial_greatest,
    partial_sums,
    scale,
    window,
    table_stride,
    page_stride,
    token_stride,
    num_heads,
    HAS_MAP: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    VALUES_ARE_KEYS: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    PAIRS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One sequence, one key head, one share of its keys. The rows of the product are the query heads of the group."""
    entry, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(single_rows + entry) if HAS_MAP else entry
    table_row = tl.load(table_rows + row).to(tl.int64)
    context_len = tl.load(positions + row) + 1
    first = context_len * 0
    if HAS_WINDOW:
        first = tl.maximum(context_len - window, 0)
    share = tl.cdiv(tl.cdiv(context_len - first, NUM_SPLITS), BLOCK_N) * BLOCK_N
    start = first + split * share
    end = tl.minimum(start + share, context_len)

    members = tl.arange(0, BLOCK_M)
    is_member = members < GROUP
    heads = kv_head * GROUP + members
    query, low_queries, high_queries = load_queries(
        queries, row * num_heads + heads, is_member, key_weight, VALUES_ARE_KEYS, NUM_PAIRS, PAIRS_PAD, HEAD_DIM
    )
    query_positions = tl.zeros([BLOCK_M], tl.int32) + (context_len - 1)
    total, greatest, weight_sum = attend_tiles(
        query, low_queries, high_queries, query_positions, start, end, keys, values,
        block_table + table_row * table_stride, page_stride, token_stride, kv_head * HEAD_DIM, scale, window,
        key_weight, cos_sin, HAS_WINDOW, VALUES_ARE_KEYS, NUM_PAIRS, PAIRS_PAD, HEAD_DIM, TOKENS_PER_BLOCK,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
    places = ((entry * num_heads + heads) * NUM_SPLITS + split).to(tl.int64)
    dims = tl.arange(0, HEAD_DIM)
    tl.store(partial_totals + places[:, None] * HEAD_DIM + dims[None, :], total, mask=is_member[:, None])
    tl.store(partial_greatest + places, greatest, mask=is_member)
    tl.store(partial_sums + places, weight_sum, mask=is_member)


@triton.jit
def _merge_splits_kernel(
    partial_totals,
    partial_greatest,
    partial_sums,
    single_rows,
    output,
    num_heads,
    HAS_MAP: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Put the shares of one row and head together."""
    entry, head = tl.program_id(0), tl.program_id(1)
    row = (tl.load(single_rows + entry) if HAS_MAP else entry).to(tl.int64)
    splits = tl.arange(0, SPLITS_PAD)
    is_split = splits < NUM_SPLITS
    dims = tl.arange(0, HEAD_DIM)
    places = (entry * num_heads + head).to(tl.int64) * NUM_SPLITS + splits
    greatest = tl.load(partial_greatest + places, mask=is_split, other=float("-inf"))
    factors = tl.exp(greatest - tl.max(greatest, axis=0))
    sums = tl.load(partial_sums + places, mask=is_split, other=0.0)
    totals = tl.load(partial_totals + places[:, None] * HEAD_DIM + dims[None, :], mask=is_split[:, None], other=0.0)
    merged = tl.sum(totals * factors[:, None], axis=0) / tl.sum(sums * factors, axis=0)
    tl.store(output + (row * num_heads + head) * HEAD_DIM + dims, merged.to(output.dtype.element_ty))


def attend_single_rows(
    queries: Tensor, output: Tensor, cache: LayerCache, plan: TritonPlan, scale: float, key_recipe: KeyRecipe | None
) -> None:
    strides, constants, weight, cos_sin = common_arguments(queries, cache, plan, key_recipe)
    num_heads, head_dim = queries.shape[1:]
    num_entries, num_kv_heads = plan.num_single, cache.keys.shape[2]
    single_rows = plan.positions if plan.single_rows is None else plan.single_rows  # read only where it is a map
    block_n = keys_per_tile(queries)
    num_splits = _num_splits(plan.longest_single, num_entries * num_kv_heads, block_n, queries.device)
    totals = torch.empty(num_entries, num_heads, num_splits, head_dim, dtype=torch.float32, device=queries.device)
    greatest, sums = (
        torch.empty(num_entries, num_heads, num_splits, dtype=torch.float32, device=queries.device) for _ in range(2)
    )
    _single_row_kernel[(num_entries, num_kv_heads, num_splits)](
        queries,
        cache.keys,
        cache.keys if cache.values is None else cache.values,
        plan.block_table,
        plan.positions,
        plan.table_rows,
        single_rows,
        weight,
        cos_sin,
        totals,
        greatest,
        sums,
        scale,
        plan.window,
        **strides,
        **constants,
        HAS_MAP=plan.single_rows is not None,
        NUM_SPLITS=num_splits,
        BLOCK_M=max(LEAST_TILE, triton.next_power_of_2(int(constants["GROUP"]))),
        BLOCK_N=block_n,
        num_warps=4,
        num_stages=2,
    )
    _merge_splits_kernel[(num_entries, num_heads)](
        totals,
        greatest,
        sums,
        single_rows,
        output,
        num_heads,
        HAS_MAP=plan.single_rows is not None,
        NUM_SPLITS=num_splits,
        SPLITS_PAD=triton.next_power_of_2(num_splits),
        HEAD_DIM=head_dim,
        num_warps=4,
    )


def _num_splits(num_keys: int, num_programs: int, block_n: int, device: torch.device) -> int:
    """Enough shares to keep every multiprocessor busy twice over, none smaller than a few tiles."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
    wanted = -(-2 * processors // num_programs)
    return max(1, min(wanted, -(-num_keys // (2 * block_n)), 64))
