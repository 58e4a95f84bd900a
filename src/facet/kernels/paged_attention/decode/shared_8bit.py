"""A running softmax over shared vectors of 8 bits.

The key of a stored value v is rotate(w * v). Still dimensions meet w * q as they are stored. Those that rotate are read
once more, from cache; with low and high the two sides of a pair,

    q . k = (q_low w_low) (low cos) + (q_high w_high) (high cos) + (q_high w_low) (low sin) - (q_low w_high) (high sin)

so that weights stay with the queries and no product of a stored number with a cosine leaves the range of float16.
Queries are rows here: of one and the same tile, dimensions by keys, the scores sum over the first and the result over
the second.
"""

# mypy: disable-error-code=assignment
# ruff: noqa: RUF005  Triton adds tuples, and does not unpack them into others

import triton
import triton.language as tl

from facet.kernels.paged_attention.decode.bytes_as_half import IN_INTERPRETER, SEGMENT, even_and_odd, put_together


@triton.jit
def _even_and_odd_queries(queries, places, is_row, FIRST: tl.constexpr, SIZE: tl.constexpr):
    dims = FIRST + 2 * tl.arange(0, SIZE // 2)
    pointers = queries + places[:, None] + dims[None, :]
    even = tl.load(pointers, mask=is_row[:, None], other=0.0).to(tl.float32)
    return even, tl.load(pointers + 1, mask=is_row[:, None], other=0.0).to(tl.float32)


@triton.jit
def _even_and_odd_weight(key_weight, FIRST: tl.constexpr, SIZE: tl.constexpr):
    dims = FIRST + 2 * tl.arange(0, SIZE // 2)
    return tl.load(key_weight + dims)[None, :], tl.load(key_weight + dims + 1)[None, :]


@triton.jit
def _still_queries(
    queries, places, is_row, key_weight,
    FIRST: tl.constexpr, SIZE: tl.constexpr, NUM_PAIRS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Queries times the key weight, and zero where dimensions rotate: those are met apart.

    The number of pairs is even, so both numbers of a word rotate or neither does.
    """
    even, odd = _even_and_odd_queries(queries, places, is_row, FIRST, SIZE)
    even_weight, odd_weight = _even_and_odd_weight(key_weight, FIRST, SIZE)
    is_still = ((FIRST + 2 * tl.arange(0, SIZE // 2)) % HALF >= NUM_PAIRS)[None, :]
    even = tl.where(is_still, even * even_weight, 0.0).to(tl.float16)
    return even, tl.where(is_still, odd * odd_weight, 0.0).to(tl.float16)


@triton.jit
def _even_and_odd_angles(cos_sin, places, SIZE: tl.constexpr):
    """Cosines or sines as float16, [SIZE / 2, keys] each."""
    pairs = tl.arange(0, SIZE // 2)[:, None]
    if IN_INTERPRETER or cos_sin.dtype.element_ty != tl.bfloat16:
        pointers = cos_sin + places[None, :] + 2 * pairs
        return tl.load(pointers).to(tl.float16), tl.load(pointers + 1).to(tl.float16)
    # A bfloat16 is the upper half of a float32.
    words = tl.load(cos_sin.to(tl.pointer_type(tl.int32), bitcast=True) + (places // 2)[None, :] + pairs)
    even = (words << 16).to(tl.float32, bitcast=True)
    odd = (words & -65536).to(tl.float32, bitcast=True)
    return even.to(tl.float16), odd.to(tl.float16)


@triton.jit
def _rotated_scores(low_low, high_high, low_high, high_low, low, high, cos, sin):
    """q . k of pairs that rotate: the weight of the key is in the queries, named after query side and stored side."""
    scores = tl.dot(low_low, low * cos, input_precision="ieee")
    scores = tl.dot(high_high, high * cos, scores, input_precision="ieee")
    scores = tl.dot(high_low, low * sin, scores, input_precision="ieee")
    return tl.dot(low_high, high * -sin, scores, input_precision="ieee")


@triton.jit
def attend_shared_8bit(
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
    HALF: tl.constexpr = HEAD_DIM // 2
    query_places = rows * HEAD_DIM
    NUM_SEGMENTS: tl.constexpr = max(1, HEAD_DIM // SEGMENT)
    SIZE: tl.constexpr = HEAD_DIM // NUM_SEGMENTS
    even_queries = ()
    odd_queries = ()
    even_totals = ()
    odd_totals = ()
    for segment in tl.static_range(NUM_SEGMENTS):
        still = _still_queries(queries, query_places, is_row, key_weight, segment * SIZE, SIZE, NUM_PAIRS, HALF)
        even_queries = even_queries + (still[0],)
        odd_queries = odd_queries + (still[1],)
        even_totals = even_totals + (tl.zeros([SIZE // 2, BLOCK_M], tl.float32),)
        odd_totals = odd_totals + (tl.zeros([SIZE // 2, BLOCK_M], tl.float32),)
    low_even, low_odd = _even_and_odd_queries(queries, query_places, is_row, 0, NUM_PAIRS)
    high_even, high_odd = _even_and_odd_queries(queries, query_places, is_row, HALF, NUM_PAIRS)
    low_weight_even, low_weight_odd = _even_and_odd_weight(key_weight, 0, NUM_PAIRS)
    high_weight_even, high_weight_odd = _even_and_odd_weight(key_weight, HALF, NUM_PAIRS)
    low_low_even = (low_even * low_weight_even).to(tl.float16)
    low_low_odd = (low_odd * low_weight_odd).to(tl.float16)
    low_high_even = (low_even * high_weight_even).to(tl.float16)
    low_high_odd = (low_odd * high_weight_odd).to(tl.float16)
    high_low_even = (high_even * low_weight_even).to(tl.float16)
    high_low_odd = (high_odd * low_weight_odd).to(tl.float16)
    high_high_even = (high_even * high_weight_even).to(tl.float16)
    high_high_odd = (high_odd * high_weight_odd).to(tl.float16)
    greatest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    for offset in range(start, end, BLOCK_N):
        positions = offset + tl.arange(0, BLOCK_N)
        live = tl.minimum(positions, end - 1)
        blocks = tl.load(block_row + live // TOKENS_PER_BLOCK).to(tl.int64)
        slots = live % TOKENS_PER_BLOCK
        places = blocks * page_stride + slots * token_stride + head_offset
        stored_even = ()
        stored_odd = ()
        scores = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for segment in tl.static_range(NUM_SEGMENTS):
            even, odd = even_and_odd(values, places + segment * SIZE, SIZE)
            # Sums of their own: a product that waits for the one before it waits longer than it takes.
            part = tl.dot(even_queries[segment], even, input_precision="ieee")
            scores += tl.dot(odd_queries[segment], odd, part, input_precision="ieee")
            stored_even = stored_even + (even,)
            stored_odd = stored_odd + (odd,)
        low_stored_even, low_stored_odd = even_and_odd(values, places, NUM_PAIRS)
        high_stored_even, high_stored_odd = even_and_odd(values, places + HALF, NUM_PAIRS)
        cos_even, cos_odd = _even_and_odd_angles(cos_sin, live * (2 * NUM_PAIRS), NUM_PAIRS)
        sin_even, sin_odd = _even_and_odd_angles(cos_sin, live * (2 * NUM_PAIRS) + NUM_PAIRS, NUM_PAIRS)
        scores += _rotated_scores(
            low_low_even, high_high_even, low_high_even, high_low_even, low_stored_even, high_stored_even,
            cos_even, sin_even,
        )  # fmt: skip
        scores += _rotated_scores(
            low_low_odd, high_high_odd, low_high_odd, high_low_odd, low_stored_odd, high_stored_odd, cos_odd, sin_odd
        )
        scores *= scale
        log_scale = 0.0
        inverse_scale = 1.0
        if HAS_SCALES:
            # Not loaded earlier, as `attend_separate_8bit` does: there is no register to wait in.
            vector_scale = tl.load(key_scales + blocks * scale_page_stride + slots * scale_token_stride)[None, :]
            scores *= vector_scale
            log_scale = tl.log(vector_scale)
            inverse_scale = 1.0 / vector_scale
        raised = tl.where((positions < end)[None, :], scores + log_scale, float("-inf"))
        new_greatest = tl.maximum(greatest, tl.max(raised, axis=1))
        shrink = tl.exp(greatest - new_greatest)
        weights = tl.exp(raised - new_greatest[:, None])
        weight_sum = weight_sum * shrink + tl.sum(weights * inverse_scale, axis=1)
        greatest = new_greatest
        weights = tl.trans(weights.to(tl.float16))
        shrink = shrink[None, :]
        new_even = ()
        new_odd = ()
        for segment in tl.static_range(NUM_SEGMENTS):
            new_even = new_even + (tl.dot(stored_even[segment], weights, even_totals[segment] * shrink),)
            new_odd = new_odd + (tl.dot(stored_odd[segment], weights, odd_totals[segment] * shrink),)
        even_totals = new_even
        odd_totals = new_odd
    totals = ()
    for segment in tl.static_range(NUM_SEGMENTS):
        totals = totals + (put_together(even_totals[segment], odd_totals[segment], SIZE, BLOCK_M),)
    return totals, greatest, weight_sum
