"""Attention over paged keys and values in Triton: one kernel for runs of rows, one, split over keys, for single rows.

Same meaning as `reference.py`. Both kernels walk a sequence's visible keys in tiles, look every tile's blocks up in
the block table, and keep a running softmax. Query heads that share a key head are rows of one matrix product, so a key
is read once for all of them. Blocks behind the window are never touched. Block sizes are compile-time constants and
need not be powers of two.

Where values are keys, only the value v is stored and the key is rotate(w * v). Most dimensions do not turn: there
q . k = (q * w) . v, a product with the stored vector itself. The pairs that turn are read once more, from cache, and
rotated in registers.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.plans import TritonPlan

# A matrix product on tensor cores takes at least this many rows and columns.
LEAST_TILE = 16


def plan_attention(
    rows: AttentionRows, block_table: Tensor, *, window: int | None, tokens_per_block: int
) -> TritonPlan:
    lens, contexts = np.array(rows.host_query_lens), np.array(rows.host_context_lens)
    single = np.flatnonzero(lens == 1)
    single_rows, longest = None, 0
    if len(single):
        starts = np.cumsum(lens) - lens
        pairs = np.stack((single, starts[single]), axis=1).astype(np.int32)
        single_rows = torch.from_numpy(pairs).to(block_table.device, non_blocking=True)
        longest = int(contexts[single].max())
    return TritonPlan(
        block_table=block_table,
        query_starts=rows.query_starts,
        context_lens=rows.context_lens,
        window=window or 0,
        tokens_per_block=tokens_per_block,
        single_rows=single_rows,
        longest_single=min(longest, window) if window else longest,
        long_sequences=tuple((int(sequence), int(lens[sequence])) for sequence in np.flatnonzero(lens > 1)),
    )


def paged_attention(
    queries: Tensor, cache: LayerCache, plan: TritonPlan, *, scale: float, key_recipe: KeyRecipe | None = None
) -> Tensor:
    output = torch.empty_like(queries)
    queries = queries.contiguous()
    if plan.single_rows is not None:
        _attend_single_rows(queries, output, cache, plan, scale, key_recipe)
    if plan.long_sequences:
        _attend_long_runs(queries, output, cache, plan, scale, key_recipe)
    return output


@triton.jit
def _load_vectors(pages, blocks, slots, page_stride, token_stride, head_offset, dims, is_live):
    """[keys, len(dims)] of one head; zeros where a place is not live, whatever the memory there holds."""
    places = blocks * page_stride + slots * token_stride + head_offset
    return tl.load(pages + places[:, None] + dims[None, :], mask=is_live[:, None], other=0.0)


@triton.jit
def _rotated_scores(
    low_queries,
    high_queries,
    pages,
    blocks,
    slots,
    page_stride,
    token_stride,
    head_offset,
    positions,
    is_live,
    key_weight,
    cos_sin,
    NUM_PAIRS: tl.constexpr,
    PAIRS_PAD: tl.constexpr,
    HALF: tl.constexpr,
):
    """The part of q . k that comes from pairs which turn with the position."""
    pairs = tl.arange(0, PAIRS_PAD)
    is_pair = pairs < NUM_PAIRS
    live_pairs = is_live[:, None] & is_pair[None, :]
    places = blocks * page_stride + slots * token_stride + head_offset
    low = tl.load(pages + places[:, None] + pairs[None, :], mask=live_pairs, other=0.0).to(tl.float32)
    high = tl.load(pages + places[:, None] + HALF + pairs[None, :], mask=live_pairs, other=0.0).to(tl.float32)
    low = low * tl.load(key_weight + pairs, mask=is_pair, other=0.0)[None, :]
    high = high * tl.load(key_weight + HALF + pairs, mask=is_pair, other=0.0)[None, :]
    angles = cos_sin + positions[:, None] * (2 * NUM_PAIRS) + pairs[None, :]
    cos = tl.load(angles, mask=live_pairs, other=0.0).to(tl.float32)
    sin = tl.load(angles + NUM_PAIRS, mask=live_pairs, other=0.0).to(tl.float32)
    low_keys = (low * cos - high * sin).to(low_queries.dtype)
    high_keys = (high * cos + low * sin).to(low_queries.dtype)
    scores = tl.dot(low_queries, tl.trans(low_keys), input_precision="ieee")
    return tl.dot(high_queries, tl.trans(high_keys), scores, input_precision="ieee")


@triton.jit
def _attend_tiles(
    queries,  # [rows, HEAD_DIM]; where values are keys, times the key weight and zero in pairs that turn
    low_queries,  # [rows, PAIRS_PAD]
    high_queries,
    query_positions,  # [rows]
    start,
    end,
    keys,
    values,
    table_row,
    page_stride,
    token_stride,
    head_offset,
    scale,
    window,
    key_weight,
    cos_sin,
    HAS_WINDOW: tl.constexpr,
    VALUES_ARE_KEYS: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    PAIRS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The running softmax of some rows over keys [start, end): (sum of weighted values, greatest score, sum)."""
    dims = tl.arange(0, HEAD_DIM)
    total = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    greatest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    for offset in range(start, end, BLOCK_N):
        positions = offset + tl.arange(0, BLOCK_N)
        is_live = positions < end
        blocks = tl.load(table_row + positions // TOKENS_PER_BLOCK, mask=is_live, other=0).to(tl.int64)
        slots = positions % TOKENS_PER_BLOCK
        value = _load_vectors(values, blocks, slots, page_stride, token_stride, head_offset, dims, is_live).to(
            queries.dtype
        )
        if VALUES_ARE_KEYS:
            scores = tl.dot(queries, tl.trans(value), input_precision="ieee")
            scores += _rotated_scores(
                low_queries, high_queries, values, blocks, slots, page_stride, token_stride, head_offset, positions,
                is_live, key_weight, cos_sin, NUM_PAIRS, PAIRS_PAD, HEAD_DIM // 2,
            )  # fmt: skip
        else:
            key = _load_vectors(keys, blocks, slots, page_stride, token_stride, head_offset, dims, is_live)
            scores = tl.dot(queries, tl.trans(key.to(queries.dtype)), input_precision="ieee")
        is_visible = is_live[None, :] & (positions[None, :] <= query_positions[:, None])
        if HAS_WINDOW:
            is_visible = is_visible & (positions[None, :] > query_positions[:, None] - window)
        scores = tl.where(is_visible, scores * scale, float("-inf"))
        new_greatest = tl.maximum(greatest, tl.max(scores, axis=1))
        # A row that has seen nothing yet keeps a finite anchor, so that exp(-inf - anchor) is zero and not NaN.
        anchor = tl.where(new_greatest == float("-inf"), 0.0, new_greatest)
        weights = tl.exp(scores - anchor[:, None])
        shrink = tl.exp(greatest - anchor)
        weight_sum = weight_sum * shrink + tl.sum(weights, axis=1)
        total = tl.dot(weights.to(value.dtype), value, total * shrink[:, None], input_precision="ieee")
        greatest = new_greatest
    return total, greatest, weight_sum


@triton.jit
def _load_queries(
    queries, rows, is_row, key_weight,
    VALUES_ARE_KEYS: tl.constexpr, NUM_PAIRS: tl.constexpr, PAIRS_PAD: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Query rows, and, where values are keys, the parts that meet still and turning dimensions."""
    dims = tl.arange(0, HEAD_DIM)
    query = tl.load(queries + rows[:, None] * HEAD_DIM + dims[None, :], mask=is_row[:, None], other=0.0)
    low_queries = query
    high_queries = query
    if VALUES_ARE_KEYS:
        pairs = tl.arange(0, PAIRS_PAD)
        live = is_row[:, None] & (pairs < NUM_PAIRS)[None, :]
        low_queries = tl.load(queries + rows[:, None] * HEAD_DIM + pairs[None, :], mask=live, other=0.0)
        high_queries = tl.load(
            queries + rows[:, None] * HEAD_DIM + HEAD_DIM // 2 + pairs[None, :], mask=live, other=0.0
        )
        turns = (dims % (HEAD_DIM // 2)) < NUM_PAIRS
        still_weight = tl.where(turns, 0.0, tl.load(key_weight + dims))
        query = (query.to(tl.float32) * still_weight[None, :]).to(query.dtype)
    return query, low_queries, high_queries


@triton.jit
def _single_row_kernel(
    queries,
    keys,
    values,
    block_table,
    context_lens,
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
    sequence = tl.load(single_rows + entry * 2).to(tl.int64)
    row = tl.load(single_rows + entry * 2 + 1)
    context_len = tl.load(context_lens + sequence)
    first = context_len * 0
    if HAS_WINDOW:
        first = tl.maximum(context_len - window, 0)
    share = tl.cdiv(tl.cdiv(context_len - first, NUM_SPLITS), BLOCK_N) * BLOCK_N
    start = first + split * share
    end = tl.minimum(start + share, context_len)

    members = tl.arange(0, BLOCK_M)
    is_member = members < GROUP
    heads = kv_head * GROUP + members
    query, low_queries, high_queries = _load_queries(
        queries, row * num_heads + heads, is_member, key_weight, VALUES_ARE_KEYS, NUM_PAIRS, PAIRS_PAD, HEAD_DIM
    )
    query_positions = tl.zeros([BLOCK_M], tl.int32) + (context_len - 1)
    total, greatest, weight_sum = _attend_tiles(
        query, low_queries, high_queries, query_positions, start, end, keys, values,
        block_table + sequence * table_stride, page_stride, token_stride, kv_head * HEAD_DIM, scale, window,
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
    NUM_SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Put the shares of one row and head together."""
    entry, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(single_rows + entry * 2 + 1).to(tl.int64)
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


@triton.jit
def _long_run_kernel(
    queries,
    output,
    keys,
    values,
    block_table,
    query_starts,
    context_lens,
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
    sequence = tl.load(tiles + tile * 2).to(tl.int64)
    first_token = tl.load(tiles + tile * 2 + 1)
    query_start = tl.load(query_starts + sequence)
    num_tokens = tl.load(query_starts + sequence + 1) - query_start
    context_len = tl.load(context_lens + sequence)

    members = tl.arange(0, BLOCK_M)
    tokens = first_token + members // GROUP
    is_row = tokens < num_tokens
    rows = (query_start + tokens) * num_heads + kv_head * GROUP + members % GROUP
    query, low_queries, high_queries = _load_queries(
        queries, rows.to(tl.int64), is_row, key_weight, VALUES_ARE_KEYS, NUM_PAIRS, PAIRS_PAD, HEAD_DIM
    )
    query_positions = context_len - num_tokens + tokens
    first_position = context_len - num_tokens + first_token
    end = tl.minimum(first_position + (BLOCK_M + GROUP - 1) // GROUP, context_len)
    start = first_position * 0
    if HAS_WINDOW:
        start = tl.maximum(first_position - window + 1, 0)
    total, _, weight_sum = _attend_tiles(
        query, low_queries, high_queries, query_positions, start, end, keys, values,
        block_table + sequence * table_stride, page_stride, token_stride, kv_head * HEAD_DIM, scale, window,
        key_weight, cos_sin, HAS_WINDOW, VALUES_ARE_KEYS, NUM_PAIRS, PAIRS_PAD, HEAD_DIM, TOKENS_PER_BLOCK,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
    dims = tl.arange(0, HEAD_DIM)
    result = (total / tl.where(is_row, weight_sum, 1.0)[:, None]).to(output.dtype.element_ty)
    tl.store(output + rows.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :], result, mask=is_row[:, None])


def _common_arguments(
    queries: Tensor, cache: LayerCache, plan: TritonPlan, key_recipe: KeyRecipe | None
) -> tuple[dict[str, int], dict[str, int | bool], Tensor, Tensor]:
    """Strides, constants, and what is only read where values are keys (anything else serves otherwise)."""
    derives = cache.values is None
    assert not derives or key_recipe is not None, "a cache of single vectors needs a recipe for its keys"
    num_heads, head_dim = queries.shape[1:]
    num_pairs = key_recipe.cos_sin.shape[-1] if derives and key_recipe is not None else 1
    strides = dict(
        table_stride=plan.block_table.stride(0),
        page_stride=cache.keys.stride(0),
        token_stride=cache.keys.stride(1),
        num_heads=num_heads,
    )
    constants: dict[str, int | bool] = dict(
        GROUP=num_heads // cache.keys.shape[2],
        HAS_WINDOW=plan.window > 0,
        VALUES_ARE_KEYS=derives,
        NUM_PAIRS=num_pairs,
        PAIRS_PAD=max(LEAST_TILE, triton.next_power_of_2(num_pairs)),
        HEAD_DIM=head_dim,
        TOKENS_PER_BLOCK=plan.tokens_per_block,
    )
    weight, cos_sin = (queries, queries) if key_recipe is None else (key_recipe.weight, key_recipe.cos_sin)
    return strides, constants, weight, cos_sin


def _attend_single_rows(
    queries: Tensor, output: Tensor, cache: LayerCache, plan: TritonPlan, scale: float, key_recipe: KeyRecipe | None
) -> None:
    assert plan.single_rows is not None
    strides, constants, weight, cos_sin = _common_arguments(queries, cache, plan, key_recipe)
    num_heads, head_dim = queries.shape[1:]
    num_entries, num_kv_heads = len(plan.single_rows), cache.keys.shape[2]
    block_n = _keys_per_tile(queries)
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
        plan.context_lens,
        plan.single_rows,
        weight,
        cos_sin,
        totals,
        greatest,
        sums,
        scale,
        plan.window,
        **strides,
        **constants,
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
        plan.single_rows,
        output,
        num_heads,
        NUM_SPLITS=num_splits,
        SPLITS_PAD=triton.next_power_of_2(num_splits),
        HEAD_DIM=head_dim,
        num_warps=4,
    )


def _keys_per_tile(queries: Tensor) -> int:
    """As many keys as two stages of a tile leave room for in shared memory: 64 of up to 512 bytes, 32 of 1024, ..."""
    vector_bytes = queries.shape[-1] * queries.element_size()
    return max(LEAST_TILE, min(64, 2**15 // vector_bytes))


def _num_splits(num_keys: int, num_programs: int, block_n: int, device: torch.device) -> int:
    """Enough shares to keep every multiprocessor busy twice over, none smaller than a few tiles."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
    wanted = -(-2 * processors // num_programs)
    return max(1, min(wanted, -(-num_keys // (2 * block_n)), 64))


def _attend_long_runs(
    queries: Tensor, output: Tensor, cache: LayerCache, plan: TritonPlan, scale: float, key_recipe: KeyRecipe | None
) -> None:
    strides, constants, weight, cos_sin = _common_arguments(queries, cache, plan, key_recipe)
    group = int(constants["GROUP"])
    block_n = _keys_per_tile(queries)
    block_m = max(2 * block_n, triton.next_power_of_2(group))
    tokens_per_tile = block_m // group
    pairs = [(sequence, first) for sequence, count in plan.long_sequences for first in range(0, count, tokens_per_tile)]
    tiles = torch.tensor(pairs, dtype=torch.int32, device=queries.device)
    _long_run_kernel[(len(pairs), cache.keys.shape[2])](
        queries,
        output,
        cache.keys,
        cache.keys if cache.values is None else cache.values,
        plan.block_table,
        plan.query_starts,
        plan.context_lens,
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
