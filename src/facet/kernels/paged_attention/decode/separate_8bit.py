"""A running softmax over separate keys and values of 8 bits.

Keys are the rows of the products: scores are K q^T, the result V^T p^T.

A group of query heads has 4 to 16 members. As the rows of a product, which come in sixteens, half of them or more would
be padding; as columns they come in eights. Keys are then an operand in the order in which they are stored.

Products are of float16, whatever the queries are. It has a narrow range, so the scale of a value goes into the exponent
of its weight: weights are at most one, whatever scales there are.
"""

# mypy: disable-error-code=assignment
# ruff: noqa: RUF005  Triton adds tuples, and does not unpack them into others

import triton
import triton.language as tl

from facet.kernels.paged_attention.decode.bytes_as_half import SEGMENT, even_and_odd, put_together, widened_to_half


@triton.jit
def _columns(queries, places, is_column, FIRST: tl.constexpr, SIZE: tl.constexpr):
    dims = FIRST + tl.arange(0, SIZE)
    return tl.load(queries + places[None, :] + dims[:, None], mask=is_column[None, :], other=0.0).to(tl.float16)


@triton.jit
def attend_separate_8bit(
    queries,
    columns,  # [BLOCK_M] int64: which vectors of `queries`; all of them see all of [start, end)
    is_column,
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
    NUM_SEGMENTS: tl.constexpr = max(1, HEAD_DIM // SEGMENT)
    SIZE: tl.constexpr = HEAD_DIM // NUM_SEGMENTS
    query = ()
    even_totals = ()
    odd_totals = ()
    for segment in tl.static_range(NUM_SEGMENTS):
        query = query + (_columns(queries, columns * HEAD_DIM, is_column, segment * SIZE, SIZE),)
        even_totals = even_totals + (tl.zeros([SIZE // 2, BLOCK_M], tl.float32),)
        odd_totals = odd_totals + (tl.zeros([SIZE // 2, BLOCK_M], tl.float32),)
    greatest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight_sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for offset in range(start, end, BLOCK_N):
        positions = offset + tl.arange(0, BLOCK_N)
        # The spare places of the last tile repeat its last key, so that loads need no mask; their scores do.
        live = tl.minimum(positions, end - 1)
        blocks = tl.load(block_row + live // TOKENS_PER_BLOCK).to(tl.int64)
        slots = live % TOKENS_PER_BLOCK
        places = blocks * page_stride + slots * token_stride + head_offset
        if HAS_SCALES:
            # On their way while keys are met: their loads are not put ahead by a tile as those of keys are.
            scale_places = blocks * scale_page_stride + slots * scale_token_stride
            key_scale = tl.load(key_scales + scale_places)[:, None]
            value_scale = tl.load(value_scales + scale_places)[:, None]
        scores = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for segment in tl.static_range(NUM_SEGMENTS):
            dims = segment * SIZE + tl.arange(0, SIZE)
            key = widened_to_half(tl.load(keys + places[:, None] + dims[None, :]))
            scores += tl.dot(key, query[segment], input_precision="ieee")
        scores *= scale
        log_scale = 0.0
        inverse_scale = 1.0
        if HAS_SCALES:
            scores *= key_scale
            log_scale = tl.log(value_scale)
            inverse_scale = 1.0 / value_scale
        raised = tl.where((positions < end)[:, None], scores + log_scale, float("-inf"))
        new_greatest = tl.maximum(greatest, tl.max(raised, axis=0))
        shrink = tl.exp(greatest - new_greatest)[None, :]
        weights = tl.exp(raised - new_greatest[None, :])
        weight_sums = weight_sums * shrink + weights * inverse_scale
        greatest = new_greatest
        weights = weights.to(tl.float16)
        new_even = ()
        new_odd = ()
        for segment in tl.static_range(NUM_SEGMENTS):
            even, odd = even_and_odd(values, places + segment * SIZE, SIZE)
            new_even = new_even + (tl.dot(even, weights, even_totals[segment] * shrink, input_precision="ieee"),)
            new_odd = new_odd + (tl.dot(odd, weights, odd_totals[segment] * shrink, input_precision="ieee"),)
        even_totals = new_even
        odd_totals = new_odd
    totals = ()
    for segment in tl.static_range(NUM_SEGMENTS):
        totals = totals + (put_together(even_totals[segment], odd_totals[segment], SIZE, BLOCK_M),)
    return totals, greatest, tl.sum(weight_sums, axis=0)
