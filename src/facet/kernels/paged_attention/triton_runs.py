"""Attention of runs of rows of one sequence, which is what prefill looks like.

Short runs read keys and values where they lie, in pages. For long runs they are unpacked first.
"""

import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.plans import TritonPlan
from facet.kernels.paged_attention.run_plans import LongRuns, RunPlan
from facet.kernels.paged_attention.triton_dense import DenseShape, attend_dense, dense_shape
from facet.kernels.paged_attention.triton_dense_derived import attend_derived
from facet.kernels.paged_attention.triton_tiles import attend_tiles, common_arguments, keys_per_tile, load_queries
from facet.kernels.paged_attention.triton_unpack import Scratch, make_scratch, unpack


@triton.jit
def _short_run_kernel(
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
    NUM_PIECES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Some consecutive rows of one sequence and all query heads of one key head: row m is token m // GROUP.

    The plan's tiles are cut into NUM_PIECES where they are more than BLOCK_M rows.
    """
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    tile, kv_head = tl.program_id(0) // NUM_PIECES, tl.program_id(1)
    skipped = (tl.program_id(0) % NUM_PIECES) * TOKENS
    num_tokens = tl.minimum(tl.load(tiles + tile * 2 + 1) - skipped, TOKENS)
    if num_tokens <= 0:
        return
    first_row = tl.load(tiles + tile * 2) + skipped
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
    """Short runs from their pages; long ones pass by pass through scratch memory."""
    assert plan.runs is not None, "a plan without runs has nothing to do here"
    if plan.runs.short_tiles is not None:
        _attend_pages(queries, output, cache, plan, plan.runs, scale, key_recipe)
    for long in plan.runs.long:
        attend_long_runs(queries, output, cache, plan, long, scale, key_recipe)


def attend_long_runs(
    queries: Tensor,
    output: Tensor,
    cache: LayerCache,
    plan: TritonPlan,
    long: LongRuns,
    scale: float,
    key_recipe: KeyRecipe | None,
    shape: DenseShape | None = None,
) -> None:
    """The runs of one pass, as many key heads at a time as scratch holds."""
    scratch = make_scratch(cache, long, queries.dtype, key_recipe)
    shape = shape or dense_shape(queries.shape[2], queries.element_size(), is_shared=scratch.is_shared)
    num_kv_heads = plan.heads.num_kv_heads
    for first in range(0, num_kv_heads, long.heads_per_slice):
        heads = range(first, min(first + long.heads_per_slice, num_kv_heads))
        unpack(scratch, cache, plan, long, heads, key_recipe)
        attend_unpacked(queries, output, scratch, plan, long, heads, scale, key_recipe, shape)


def attend_unpacked(
    queries: Tensor,
    output: Tensor,
    scratch: Scratch,
    plan: TritonPlan,
    long: LongRuns,
    heads: range,
    scale: float,
    key_recipe: KeyRecipe | None,
    shape: DenseShape,
) -> object:
    """Attention over the key heads in scratch, by the kernel that its layout is for. Returns the compiled kernel."""
    if scratch.is_shared:
        assert key_recipe is not None, "vectors are shared only where keys are derived"
        return attend_derived(queries, output, scratch, plan, long, heads, scale, key_recipe, shape)
    return attend_dense(queries, output, scratch, plan, long, heads, scale, shape)


def _attend_pages(
    queries: Tensor,
    output: Tensor,
    cache: LayerCache,
    plan: TritonPlan,
    runs: RunPlan,
    scale: float,
    key_recipe: KeyRecipe | None,
) -> None:
    assert runs.short_tiles is not None
    strides, constants, weight, cos_sin = common_arguments(queries, cache, plan, key_recipe)
    group = int(constants["GROUP"])
    block_n = keys_per_tile(queries)
    block_m = max(2 * block_n, triton.next_power_of_2(group))
    num_pieces = -(-runs.tokens_per_tile // (block_m // group))
    _short_run_kernel[(len(runs.short_tiles) * num_pieces, cache.keys.shape[2])](
        queries,
        output,
        cache.keys,
        cache.keys if cache.values is None else cache.values,
        plan.block_table,
        plan.positions,
        plan.table_rows,
        runs.short_tiles,
        weight,
        cos_sin,
        scale,
        plan.window,
        **strides,
        **constants,
        NUM_PIECES=num_pieces,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=8,
        num_stages=2,
    )
