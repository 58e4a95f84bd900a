"""A running softmax over separate keys and values; also over any cache that no other file here reads.

Those are shared vectors of which not a quarter rotates, and bytes under queries of float32.
"""

import triton
import triton.language as tl

from facet.kernels.paged_attention.tiles import load_queries, running_softmax, score_tile


@triton.jit
def attend_separate(
    queries,
    rows,  # [BLOCK_M] int64: which vectors of `queries`; all of them see all of [start, end)
    is_row,
    start,
    end,
    keys,
    values,
    block_row,  # the blocks of the sequence
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
    """(Sums of weighted values in one segment, greatest score, sum of weights)."""
    query, low_queries, high_queries = load_queries(
        queries, rows, is_row, key_weight, SHARED, NUM_PAIRS, PAIRS_PAD, HEAD_DIM
    )
    total = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    greatest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    for offset in range(start, end, BLOCK_N):
        positions = offset + tl.arange(0, BLOCK_N)
        is_live = positions < end
        scores, value, value_scale = score_tile(
            query, low_queries, high_queries, positions, is_live, keys, values, block_row, page_stride, token_stride,
            head_offset, key_scales, value_scales, scale_page_stride, scale_token_stride, key_weight, cos_sin,
            HAS_SCALES, SHARED, NUM_PAIRS, PAIRS_PAD, HEAD_DIM, TOKENS_PER_BLOCK,
        )  # fmt: skip
        scores = tl.where(is_live[None, :], scores * scale, float("-inf"))
        weights, shrink, greatest, weight_sum = running_softmax(scores, greatest, weight_sum)
        if HAS_SCALES:
            weights *= value_scale[None, :]
        total = tl.dot(weights.to(value.dtype), value, total * shrink[:, None], input_precision="ieee")
    return (total,), greatest, weight_sum
