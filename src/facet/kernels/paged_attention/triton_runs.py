"""Attention of runs of rows of one sequence, which is what prefill looks like."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.plans import TritonPlan
from facet.kernels.paged_attention.triton_tiles import attend_tiles, common_arguments, keys_per_tile, load_queries


@triton.jit
def _long_run_kernel(
    queries,
    output,
    keys,
    values,
    block_table,
    positions,
    table_rows,
    tiles,
    key_weight,
    cos_sin,
    scale,
    window,
    table_stride,
    page_stride,
    token_stride,
    num_heads,
    GROUP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    VALUES_ARE_KEYS: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    PAIRS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Some consecutive rows of one sequence and all query heads of one key head: row m is token m // GROUP."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    first_row = tl.load(tiles + tile * 2)
    num_tokens = tl.load(tiles + tile * 2 + 1)
    table_row = tl.load(table_rows + first_row).to(tl.int64)
    first_position = tl.load(positions + first_row)

    members = tl.arange(0, BLOCK_M)
    tokens = members // GROUP
    is_row = tokens < num_tokens
    rows = (first_row + tokens) * num_heads + kv_head * GROUP + members % GROUP
    query, low_queries, high_queries = load_queries(
        queries, rows.to(tl.int64), is_row, key_weight, VALUES_ARE_KEYS, NUM_PAIRS, PAIRS_PAD, HEAD_DIM
    )
    query_positions = first_position + tokens
    end = first_position + num_tokens
    start = first_position * 0
    if HAS_WINDOW:
        start = tl.maximum(first_position - window + 1, 0)
    total, _, weight_sum = attend_tiles(
        query, low_queries, high_queries, query_positions, start, end, keys, values,
        block_table + table_row * table_stride, page_stride, token_stride, kv_head * HEAD_DIM, scale, window,
        key_weight, cos_sin, HAS_WINDOW, VALUES_ARE_KEYS, NUM_PAIRS, PAIRS_PAD, HEAD_DIM, TOKENS_PER_BLOCK,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
    dims = tl.arange(0, HEAD_DIM)
    result = (total / tl.where(is_row, weight_sum, 1.0)[:, None]).to(output.dtype.element_ty)
    tl.store(output + rows.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :], result, mask=is_row[:, None])


def attend_runs(
    queries: Tensor, output: Tensor, cache: LayerCache, plan: TritonPlan, scale: float, key_recipe: KeyRecipe | None
) -> None:
    strides, constants, weight, cos_sin = common_arguments(queries, cache, plan, key_recipe)
    group = int(constants["GROUP"])
    block_n = keys_per_tile(queries)
    block_m = max(2 * block_n, triton.next_power_of_2(group))
    tokens_per_tile = block_m // group
    pairs = [
        (run.first_row + first, min(tokens_per_tile, run.num_rows - first))
        for run in plan.runs
        for first in range(0, run.num_rows, tokens_per_tile)
    ]
    tiles = torch.tensor(pairs, dtype=torch.int32, device=queries.device)
    _long_run_kernel[(len(pairs), cache.keys.shape[2])](
        queries,
        output,
        cache.keys,
        cache.keys if cache.values is None else cache.values,
        plan.block_table,
        plan.positions,
        plan.table_rows,
        tiles,
        weight,
        cos_sin,
        scale,
        plan.window,
        **strides,
        **constants,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=8,
        num_stages=2,
    )
