"""What kernels that read pages share: loading queries, the scores of one tile of keys, and a running softmax.

Of shared vectors only the value v is stored, and the key is rotate(w * v). Most dimensions do not rotate: there
q . k = (q * w) . v, a product with the stored vector itself. The pairs that rotate are read once more, from cache, and
rotated in registers.

Stored numbers of one byte are exact in every type that products are made of, so they meet the queries as they are
stored. A key's scale multiplies its scores, a value's its weights: the product stored * scale is never rounded, where
the reference rounds it to the type of the queries once for every number.
"""

import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.plan import PagedRows

# A matrix product on tensor cores takes at least this many rows and columns.
LEAST_TILE = 16


@triton.jit
def widened(stored, dtype: tl.constexpr):
    """Stored numbers as `dtype`, exactly, where they are of one byte."""
    if stored.dtype == tl.int8:
        # Added to the bits of 2^23 + 128, an int8 x makes those of 2^23 + 128 + x. Two additions are done on all lanes,
        # where a conversion from an integer waits for one of few converters.
        bits = stored.to(tl.int32) + 0x4B000080
        return (bits.to(tl.float32, bitcast=True) - 8388736.0).to(dtype)
    if stored.dtype.primitive_bitwidth == 8:
        return stored.to(tl.float32).to(dtype)
    return stored.to(dtype)


@triton.jit
def load_vectors(pages, blocks, slots, page_stride, token_stride, head_offset, dims, is_live):
    """[keys, len(dims)] of one head; zeros where a place is not live, whatever the memory there holds."""
    places = blocks * page_stride + slots * token_stride + head_offset
    return tl.load(pages + places[:, None] + dims[None, :], mask=is_live[:, None], other=0.0)


@triton.jit
def rotated_scores(
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
    """The part of q . k that comes from pairs which rotate with the position."""
    pairs = tl.arange(0, PAIRS_PAD)
    is_pair = pairs < NUM_PAIRS
    live_pairs = is_live[:, None] & is_pair[None, :]
    places = blocks * page_stride + slots * token_stride + head_offset
    low = widened(tl.load(pages + places[:, None] + pairs[None, :], mask=live_pairs, other=0.0), tl.float32)
    high = widened(tl.load(pages + places[:, None] + HALF + pairs[None, :], mask=live_pairs, other=0.0), tl.float32)
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
def score_tile(
    queries,  # [rows, HEAD_DIM]; of shared vectors, times the key weight and zero in pairs that rotate
    low_queries,  # [rows, PAIRS_PAD]
    high_queries,
    positions,  # [keys]
    is_live,
    keys,
    values,
    block_row,
    page_stride,
    token_stride,
    head_offset,
    key_scales,  # of the head
    value_scales,
    scale_page_stride,
    scale_token_stride,
    key_weight,
    cos_sin,
    HAS_SCALES: tl.constexpr,
    SHARED: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    PAIRS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
):
    """(q . k for every row and key, values, scales of the values). What is not live counts as zeros."""
    dims = tl.arange(0, HEAD_DIM)
    blocks = tl.load(block_row + positions // TOKENS_PER_BLOCK, mask=is_live, other=0).to(tl.int64)
    slots = positions % TOKENS_PER_BLOCK
    value = load_vectors(values, blocks, slots, page_stride, token_stride, head_offset, dims, is_live)
    value = widened(value, queries.dtype)
    if SHARED:
        scores = tl.dot(queries, tl.trans(value), input_precision="ieee")
        scores += rotated_scores(
            low_queries, high_queries, values, blocks, slots, page_stride, token_stride, head_offset, positions,
            is_live, key_weight, cos_sin, NUM_PAIRS, PAIRS_PAD, HEAD_DIM // 2,
        )  # fmt: skip
    else:
        key = load_vectors(keys, blocks, slots, page_stride, token_stride, head_offset, dims, is_live)
        scores = tl.dot(queries, tl.trans(widened(key, queries.dtype)), input_precision="ieee")
    value_scale = positions  # not read, without scales
    if HAS_SCALES:
        scale_places = blocks * scale_page_stride + slots * scale_token_stride
        key_scale = tl.load(key_scales + scale_places, mask=is_live, other=0.0)
        value_scale = key_scale
        if not SHARED:
            value_scale = tl.load(value_scales + scale_places, mask=is_live, other=0.0)
        scores *= key_scale[None, :]
    return scores, value, value_scale


@triton.jit
def score_separate(
    queries, positions, is_live, keys, values, block_row, page_stride, token_stride, head_offset,
    HEAD_DIM: tl.constexpr, TOKENS_PER_BLOCK: tl.constexpr,
):  # fmt: skip
    """`score_tile` of keys and values that are separate and have no scales: (q . k, values)."""
    scores, value, _value_scale = score_tile(
        queries, queries, queries, positions, is_live, keys, values, block_row, page_stride, token_stride, head_offset,
        keys, values, 0, 0, keys, keys, False, False, 1, 16, HEAD_DIM, TOKENS_PER_BLOCK,
    )  # fmt: skip
    return scores, value


@triton.jit
def running_softmax(scores, greatest, weight_sum):
    """Weights of a tile's scores, the factor by which what was summed before shrinks, and the running state."""
    new_greatest = tl.maximum(greatest, tl.max(scores, axis=1))
    # A row that has seen nothing yet keeps a finite anchor, so that exp(-inf - anchor) is zero and not NaN.
    anchor = tl.where(new_greatest == float("-inf"), 0.0, new_greatest)
    weights = tl.exp(scores - anchor[:, None])
    shrink = tl.exp(greatest - anchor)
    return weights, shrink, new_greatest, weight_sum * shrink + tl.sum(weights, axis=1)


@triton.jit
def load_queries(
    queries, rows, is_row, key_weight,
    SHARED: tl.constexpr, NUM_PAIRS: tl.constexpr, PAIRS_PAD: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Query rows, and, for shared vectors, the parts that meet still dimensions and pairs that rotate."""
    dims = tl.arange(0, HEAD_DIM)
    query = tl.load(queries + rows[:, None] * HEAD_DIM + dims[None, :], mask=is_row[:, None], other=0.0)
    low_queries = query
    high_queries = query
    if SHARED:
        pairs = tl.arange(0, PAIRS_PAD)
        live = is_row[:, None] & (pairs < NUM_PAIRS)[None, :]
        low_queries = tl.load(queries + rows[:, None] * HEAD_DIM + pairs[None, :], mask=live, other=0.0)
        high_queries = tl.load(
            queries + rows[:, None] * HEAD_DIM + HEAD_DIM // 2 + pairs[None, :], mask=live, other=0.0
        )
        rotates = (dims % (HEAD_DIM // 2)) < NUM_PAIRS
        still_weight = tl.where(rotates, 0.0, tl.load(key_weight + dims))
        query = (query.to(tl.float32) * still_weight[None, :]).to(query.dtype)
    return query, low_queries, high_queries


def common_arguments(
    queries: Tensor, cache: LayerCache, rows: PagedRows, key_recipe: KeyRecipe | None
) -> tuple[dict[str, int], dict[str, int | bool], Tensor, Tensor]:
    """Strides, constants, and what is only read where vectors are shared (anything else serves otherwise)."""
    assert not cache.is_shared or key_recipe is not None, "shared vectors need a recipe for their keys"
    num_heads, head_dim = queries.shape[1:]
    num_pairs = key_recipe.cos_sin.shape[-1] if cache.is_shared and key_recipe is not None else 1
    scale_strides = (0, 0, 0) if cache.key_scales is None else cache.key_scales.stride()
    strides = dict(
        table_stride=rows.block_table.stride(0),
        page_stride=cache.keys.stride(0),
        token_stride=cache.keys.stride(1),
        scale_page_stride=scale_strides[0],
        scale_token_stride=scale_strides[1],
        scale_head_stride=scale_strides[2],
        num_heads=num_heads,
    )
    constants: dict[str, int | bool] = dict(
        GROUP=num_heads // cache.keys.shape[2],
        HAS_WINDOW=rows.window > 0,
        HAS_SCALES=cache.key_scales is not None,
        SHARED=cache.is_shared,
        NUM_PAIRS=num_pairs,
        PAIRS_PAD=max(LEAST_TILE, triton.next_power_of_2(num_pairs)),
        HEAD_DIM=head_dim,
        TOKENS_PER_BLOCK=rows.tokens_per_block,
    )
    weight, cos_sin = (queries, queries) if key_recipe is None else (key_recipe.weight, key_recipe.cos_sin)
    return strides, constants, weight, cos_sin
