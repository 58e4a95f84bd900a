"""A running softmax over shared vectors, each loaded once and serving as both key and value.

The key of a stored value v is rotate(w * v), and a quarter of the pairs rotate. In storage order the vector is cut
where rotated and still dimensions meet, in segments whose sizes are powers of two:

    segments   0: P  | 1: P | 2: 2P || 3: P  | 4: P | 5: 2P        P pairs, head_dim = 8P
               rotate  still  still    rotate  still  still

Segments 0 and 3 are the two sides of the pairs: they are rotated in registers for the scores. The others meet w * q as
they are. All six are values.
"""

import triton
import triton.language as tl

from facet.kernels.paged_attention.tiles import running_softmax


@triton.jit
def _load_segment(vectors, places, FIRST: tl.constexpr, SIZE: tl.constexpr, dtype: tl.constexpr):
    return tl.load(vectors + places[:, None] + (FIRST + tl.arange(0, SIZE))[None, :]).to(dtype)


@triton.jit
def _load_weight(key_weight, FIRST: tl.constexpr, SIZE: tl.constexpr):
    return tl.load(key_weight + FIRST + tl.arange(0, SIZE))[None, :]


@triton.jit
def _load_query(queries, places, is_row, FIRST: tl.constexpr, SIZE: tl.constexpr):
    dims = FIRST + tl.arange(0, SIZE)
    return tl.load(queries + places[:, None] + dims[None, :], mask=is_row[:, None], other=0.0)


@triton.jit
def _load_still_query(queries, places, is_row, key_weight, FIRST: tl.constexpr, SIZE: tl.constexpr):
    query = _load_query(queries, places, is_row, FIRST, SIZE)
    return (query.to(tl.float32) * _load_weight(key_weight, FIRST, SIZE)).to(query.dtype)


@triton.jit
def attend_shared(
    queries,
    rows,  # [BLOCK_M] int64: which vectors of `queries`; all of them see all of [start, end)
    is_row,
    start,
    end,
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
    scale,
    key_weight,
    cos_sin,
    HAS_SCALES: tl.constexpr,
    SHARED: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    PAIRS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """See `readers.py`. There is at least one key."""
    P: tl.constexpr = NUM_PAIRS
    dtype: tl.constexpr = queries.dtype.element_ty
    query_places = rows * (8 * P)
    query_0 = _load_query(queries, query_places, is_row, 0, P)
    query_1 = _load_still_query(queries, query_places, is_row, key_weight, P, P)
    query_2 = _load_still_query(queries, query_places, is_row, key_weight, 2 * P, 2 * P)
    query_3 = _load_query(queries, query_places, is_row, 4 * P, P)
    query_4 = _load_still_query(queries, query_places, is_row, key_weight, 5 * P, P)
    query_5 = _load_still_query(queries, query_places, is_row, key_weight, 6 * P, 2 * P)
    low_weight = _load_weight(key_weight, 0, P)
    high_weight = _load_weight(key_weight, 4 * P, P)
    total_0 = tl.zeros([BLOCK_M, P], tl.float32)
    total_1 = tl.zeros([BLOCK_M, P], tl.float32)
    total_2 = tl.zeros([BLOCK_M, 2 * P], tl.float32)
    total_3 = tl.zeros([BLOCK_M, P], tl.float32)
    total_4 = tl.zeros([BLOCK_M, P], tl.float32)
    total_5 = tl.zeros([BLOCK_M, 2 * P], tl.float32)
    greatest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    for offset in range(start, end, BLOCK_N):
        positions = offset + tl.arange(0, BLOCK_N)
        # The spare places of the last tile repeat its last key, so that loads need no mask; their scores do.
        live = tl.minimum(positions, end - 1)
        blocks = tl.load(block_row + live // TOKENS_PER_BLOCK).to(tl.int64)
        slots = live % TOKENS_PER_BLOCK
        places = blocks * page_stride + slots * token_stride + head_offset
        value_0 = _load_segment(values, places, 0, P, dtype)
        value_1 = _load_segment(values, places, P, P, dtype)
        value_2 = _load_segment(values, places, 2 * P, 2 * P, dtype)
        value_3 = _load_segment(values, places, 4 * P, P, dtype)
        value_4 = _load_segment(values, places, 5 * P, P, dtype)
        value_5 = _load_segment(values, places, 6 * P, 2 * P, dtype)
        angles = live * (2 * P)
        cos = _load_segment(cos_sin, angles, 0, P, tl.float32)
        sin = _load_segment(cos_sin, angles, P, P, tl.float32)

        scores = tl.dot(query_1, tl.trans(value_1), input_precision="ieee")
        scores = tl.dot(query_2, tl.trans(value_2), scores, input_precision="ieee")
        scores = tl.dot(query_4, tl.trans(value_4), scores, input_precision="ieee")
        scores = tl.dot(query_5, tl.trans(value_5), scores, input_precision="ieee")
        low = value_0.to(tl.float32) * low_weight
        high = value_3.to(tl.float32) * high_weight
        low_keys = (low * cos - high * sin).to(dtype)
        high_keys = (high * cos + low * sin).to(dtype)
        scores = tl.dot(query_0, tl.trans(low_keys), scores, input_precision="ieee")
        scores = tl.dot(query_3, tl.trans(high_keys), scores, input_precision="ieee")

        scores = tl.where((positions < end)[None, :], scores * scale, float("-inf"))
        weights, shrink, greatest, weight_sum = running_softmax(scores, greatest, weight_sum)
        weights = weights.to(dtype)
        shrink = shrink[:, None]
        total_0 = tl.dot(weights, value_0, total_0 * shrink, input_precision="ieee")
        total_1 = tl.dot(weights, value_1, total_1 * shrink, input_precision="ieee")
        total_2 = tl.dot(weights, value_2, total_2 * shrink, input_precision="ieee")
        total_3 = tl.dot(weights, value_3, total_3 * shrink, input_precision="ieee")
        total_4 = tl.dot(weights, value_4, total_4 * shrink, input_precision="ieee")
        total_5 = tl.dot(weights, value_5, total_5 * shrink, input_precision="ieee")
    return (total_0, total_1, total_2, total_3, total_4, total_5), greatest, weight_sum
