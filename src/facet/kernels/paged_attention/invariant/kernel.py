"""Attention in Triton whose every row comes out the same, bit for bit, whatever else is computed in the step: not only
other sequences but also how many rows of its own come with it, since company decides where a prompt is cut into chunks.

    keys of a sequence   |0 .. 1023|1024 .. 2047|...    *shares*, each by a program of its own, then put together
    of one share         |0 .. 63|64 .. 127|...         tiles, taken in turn with a running softmax

Both are cut at positions that are the same for everybody. One kernel of one shape serves a single row and a tile of
rows of a prompt, so a row meets the same tiles in the same order, and the same instructions. A tile of which it sees
nothing, which only its neighbours need, changes nothing: its weights are zero, and what was summed is multiplied by
one. Layers with a window have one share: a window is short.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.paged_attention.cache import HeadShape, KeyRecipe, LayerCache
from facet.kernels.paged_attention.invariant.plan import ROWS_PER_PRODUCT, rows_of_product
from facet.kernels.paged_attention.plans import InvariantTritonPlan
from facet.kernels.paged_attention.tiles import attend_tiles, common_arguments, load_queries

# Of float32, which is for checking models and not for serving them: small enough to fit anywhere.
_ROWS_OF_FLOAT32 = 16


class _Shape(NamedTuple):
    """Of the products of one program."""

    num_rows: int
    num_keys: int  # at a time
    num_warps: int
    num_stages: int


def _choose_shape(heads: HeadShape, element_size: int) -> _Shape:
    """Not a function of the rows of a step."""
    if element_size > 2:
        return _Shape(rows_of_product(heads, _ROWS_OF_FLOAT32), 16, num_warps=4, num_stages=1)
    num_rows = rows_of_product(heads, ROWS_PER_PRODUCT)
    # As many keys, and as many tiles on their way, as leave the running sums in registers.
    if heads.head_dim > 256:
        return _Shape(num_rows, 32, num_warps=8, num_stages=2)
    return _Shape(num_rows, 32 if heads.head_dim > 128 else 64, num_warps=4, num_stages=3)


def paged_attention(
    queries: Tensor,
    cache: LayerCache,
    plan: InvariantTritonPlan,
    *,
    scale: float,
    key_recipe: KeyRecipe | None = None,
    out: Tensor | None = None,
) -> Tensor:
    queries = queries.contiguous()
    output = torch.empty_like(queries) if out is None else out
    assert output.is_contiguous(), "rows lie one after another"
    strides, constants, weight, cos_sin = common_arguments(queries, cache, plan, key_recipe)
    shape = _choose_shape(plan.heads, queries.element_size())
    num_heads, head_dim = queries.shape[1:]
    tokens_per_program = shape.num_rows * plan.heads.num_kv_heads // num_heads
    programs_per_tile = triton.cdiv(plan.tokens_per_tile, tokens_per_program)
    has_window = plan.window > 0
    assert plan.keys_per_share % shape.num_keys == 0, "a share is whole tiles"
    most_rows = 0 if has_window else max((len(tile_pass.rows) for tile_pass in plan.passes), default=0)
    partials = torch.empty(most_rows, num_heads, plan.num_shares, head_dim, dtype=torch.float32, device=queries.device)
    levels = torch.empty(most_rows, num_heads, plan.num_shares, 2, dtype=torch.float32, device=queries.device)
    for tile_pass in plan.passes:
        _attend_kernel[(len(tile_pass.tiles) * programs_per_tile, plan.heads.num_kv_heads, plan.num_shares)](
            queries,
            cache.keys,
            cache.keys if cache.values is None else cache.values,
            plan.block_table,
            plan.positions,
            plan.seats,
            plan.tiles,
            weight,
            cos_sin,
            output,
            output if has_window else partials,
            output if has_window else levels,
            output if cache.key_scales is None else cache.key_scales,  # read only where there are scales
            output if cache.value_scales is None else cache.value_scales,
            scale,
            plan.window,
            tile_pass.tiles.start,
            tile_pass.rows.start,
            plan.num_shares,
            **strides,
            **constants,
            KEYS_PER_SHARE=plan.keys_per_share,
            PROGRAMS_PER_TILE=programs_per_tile,
            TOKENS=tokens_per_program,
            BLOCK_M=shape.num_rows,
            BLOCK_N=shape.num_keys,
            num_warps=shape.num_warps,
            num_stages=shape.num_stages,
        )
        if not has_window:
            _merge_kernel[(len(tile_pass.rows), num_heads)](
                partials,
                levels,
                plan.positions,
                output,
                tile_pass.rows.start,
                plan.num_shares,
                HEAD_DIM=head_dim,
                KEYS_PER_SHARE=plan.keys_per_share,
                num_warps=1,
            )
    return output


# Not specialized: one kernel serves all steps.
@triton.jit(do_not_specialize=["first_tile", "pass_row", "num_shares"])
def _attend_kernel(
    queries,
    keys,
    values,
    block_table,
    positions,
    seats,
    tiles,
    key_weight,
    cos_sin,
    output,
    partials,  # [rows of the pass, heads, shares, HEAD_DIM]: sums of weighted values
    levels,  # [rows of the pass, heads, shares, 2]: the greatest score, and the sum of weights
    key_scales,
    value_scales,
    scale,
    window,
    first_tile,
    pass_row,
    num_shares,
    table_stride,
    page_stride,
    token_stride,
    scale_page_stride,
    scale_token_stride,
    scale_head_stride,
    num_heads,
    GROUP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    VALUES_ARE_KEYS: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    PAIRS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    KEYS_PER_SHARE: tl.constexpr,
    PROGRAMS_PER_TILE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Some rows of one sequence, one key head, one share of its keys."""
    tile = tiles + (first_tile + tl.program_id(0) // PROGRAMS_PER_TILE) * 2
    skipped = tl.program_id(0) % PROGRAMS_PER_TILE * TOKENS
    kv_head, share = tl.program_id(1), tl.program_id(2)
    first_row = tl.load(tile) + skipped
    num_tokens = tl.minimum(tl.load(tile + 1) - skipped, TOKENS)
    if num_tokens <= 0:
        return
    first_position = tl.load(positions + first_row)
    context_len = first_position + num_tokens
    first_seen = context_len * 0
    if HAS_WINDOW:
        # What lies before the window of the first row may be another's by now.
        first_seen = tl.maximum(first_position - window + 1, 0)
        start = first_seen // BLOCK_N * BLOCK_N
        end = context_len
    else:
        start = share * KEYS_PER_SHARE
        end = tl.minimum(start + KEYS_PER_SHARE, context_len)
    if start >= end:
        return

    places = tl.arange(0, BLOCK_M)
    tokens = places // GROUP
    is_row = tokens < num_tokens
    heads = kv_head * GROUP + places % GROUP
    query_positions = first_position + tokens
    vectors = (first_row + tokens).to(tl.int64) * num_heads + heads
    query, low_queries, high_queries = load_queries(
        queries, vectors, is_row, key_weight, VALUES_ARE_KEYS, NUM_PAIRS, PAIRS_PAD, HEAD_DIM
    )
    table_row = block_table + tl.load(seats + first_row).to(tl.int64) * table_stride
    total, greatest, weight_sum = attend_tiles(
        query, low_queries, high_queries, query_positions, first_seen, start, end, keys, values, table_row, page_stride,
        token_stride, kv_head * HEAD_DIM, key_scales + kv_head * scale_head_stride,
        value_scales + kv_head * scale_head_stride, scale_page_stride, scale_token_stride, scale, window, key_weight,
        cos_sin, HAS_SCALES, False, HAS_WINDOW, VALUES_ARE_KEYS, NUM_PAIRS, PAIRS_PAD, HEAD_DIM, TOKENS_PER_BLOCK,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip

    dims = tl.arange(0, HEAD_DIM)
    if HAS_WINDOW:
        # Places where no row stands may have seen nothing.
        means = total / tl.where(is_row, weight_sum, 1.0)[:, None]
        pointers = output + vectors[:, None] * HEAD_DIM + dims[None, :]
        tl.store(pointers, means.to(output.dtype.element_ty), mask=is_row[:, None])
    else:
        parts = (vectors - pass_row * num_heads) * num_shares + share
        tl.store(partials + parts[:, None] * HEAD_DIM + dims[None, :], total, mask=is_row[:, None])
        tl.store(levels + parts * 2, greatest, mask=is_row)
        tl.store(levels + parts * 2 + 1, weight_sum, mask=is_row)


@triton.jit(do_not_specialize=["pass_row", "num_shares"])
def _merge_kernel(
    partials, levels, positions, output, pass_row, num_shares, HEAD_DIM: tl.constexpr, KEYS_PER_SHARE: tl.constexpr
):
    """Put the shares of one row and head together, in their order."""
    local, head, num_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = pass_row + local
    num_seen = tl.load(positions + row) // KEYS_PER_SHARE + 1
    first = (local.to(tl.int64) * num_heads + head) * num_shares
    greatest = float("-inf")
    for share in range(num_seen):
        greatest = tl.maximum(greatest, tl.load(levels + (first + share) * 2))
    dims = tl.arange(0, HEAD_DIM)
    total = tl.zeros([HEAD_DIM], tl.float32)
    weight_sum = 0.0
    for share in range(num_seen):
        factor = tl.exp(tl.load(levels + (first + share) * 2) - greatest)
        weight_sum += factor * tl.load(levels + (first + share) * 2 + 1)
        total += factor * tl.load(partials + (first + share) * HEAD_DIM + dims)
    vector = row.to(tl.int64) * num_heads + head
    tl.store(output + vector * HEAD_DIM + dims, (total / weight_sum).to(output.dtype.element_ty))
