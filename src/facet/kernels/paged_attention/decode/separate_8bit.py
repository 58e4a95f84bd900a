"""A running softmax over quantized keys, with keys as the rows of the products: scores are K q^T, the result V^T p^T.

A group of query heads has 4 to 16 members. As the rows of a product, which come in sixteens, half of them or more would
be padding; as columns they come in eights. Keys are then an operand in the order in which they are stored.

Products are of float16, whatever the queries are. It has a narrow range, so the scale of a value goes into the exponent
of its weight: weights are at most one, whatever scales there are.
"""

# mypy: disable-error-code=assignment
# ruff: noqa: RUF005  Triton adds tuples, and does not unpack them into others

import triton
import triton.language as tl

from facet.kernels.paged_attention.decode.bytes_as_half import PIECE, even_and_odd, put_together, widened_to_half


@triton.jit
def _columns(queries, places, is_column, FIRST: tl.constexpr, SIZE: tl.constexpr):
    dims = FIRST + tl.arange(0, SIZE)
    return tl.load(queries + places[None, :] + dims[:, None], mask=is_column[None, :], other=0.0).to(tl.float16)


@triton.jit
def attend_values(
    queries,
    columns,  # [BLOCK_M] int64: which vectors of `queries`; all of them see all of [start, end)
    is_column,
    start,
    end,
    keys,
    values,
    table_row,
    page_stride,
    token_stride,
    head_offset,
    key_scales,  # of the head
    value_scales,
    scale_page_stride,
    scale_token_stride,
    scale,
    HAS_SCALES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """(Sum of weighted values [HEAD_DIM, BLOCK_M], greatest exponent, sum of weights). There is at least one key."""
    NUM_PIECES: tl.constexpr = max(1, HEAD_DIM // PIECE)
    SIZE: tl.constexpr = HEAD_DIM // NUM_PIECES
    query = ()
    even_totals = ()
    odd_totals = ()
    for piece in tl.static_range(NUM_PIECES):
        query = query + (_columns(queries, columns * HEAD_DIM, is_column, piece * SIZE, SIZE),)
        even_totals = even_totals + (tl.zeros([SIZE // 2, BLOCK_M], tl.float32),)
        odd_totals = odd_totals + (tl.zeros([SIZE // 2, BLOCK_M], tl.float32),)
    greatest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight_sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for offset in range(start, end, BLOCK_N):
        positions = offset + tl.arange(0, BLOCK_N)
        # The spare places of the last tile repeat its last key, so that loads need no mask; their scores do.
        live = tl.minimum(positions, end - 1)
        blocks = tl.load(table_row + live // TOKENS_PER_BLOCK).to(tl.int64)
        slots = live % TOKENS_PER_BLOCK
        places = blocks * page_stride + slots * token_stride + head_offset
        if HAS_SCALES:
            # On their way while keys are met: their loads are not put ahead by a tile as those of keys are.
            scale_places = blocks * scale_page_stride + slots * scale_token_stride
            key_scale = tl.load(key_scales + scale_places)[:, None]
            value_scale = tl.load(value_scales + scale_places)[:, None]
        scores = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for piece in tl.static_range(NUM_PIECES):
            dims = piece * SIZE + tl.arange(0, SIZE)
            key = widened_to_half(tl.load(keys + places[:, None] + dims[None, :]))
            scores += tl.dot(key, query[piece], input_precision="ieee")
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
        for piece in tl.static_range(NUM_PIECES):
            even, odd = even_and_odd(values, places + piece * SIZE, SIZE)
            new_even = new_even + (tl.dot(even, weights, even_totals[piece] * shrink, input_precision="ieee"),)
            new_odd = new_odd + (tl.dot(odd, weights, odd_totals[piece] * shrink, input_precision="ieee"),)
        even_totals = new_even
        odd_totals = new_odd
    totals = ()
    for piece in tl.static_range(NUM_PIECES):
        totals = totals + (put_together(even_totals[piece], odd_totals[piece], SIZE, BLOCK_M),)
    return totals, greatest, tl.sum(weight_sums, axis=0)
