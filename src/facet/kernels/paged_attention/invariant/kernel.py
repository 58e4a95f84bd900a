"""Kernels whose rows are bit for bit the same whatever else is computed in the step: not only other sequences, but also
how many rows of the same sequence, since other requests decide where a prompt is split into chunks.

    keys of a sequence   |0 .. 1023|1024 .. 2047|...    *shares*, each by a program of its own, then put together
    of one share         |0 .. 31|32 .. 63|...          tiles, taken in turn with a running softmax

Both are cut at fixed positions, the same for all rows. One kernel of one shape serves a decoded row and a tile of
rows of a prompt, so a row meets the same tiles in the same order, and the same instructions. A tile of which it sees
nothing, which only its neighbours need, changes nothing: its weights are zero, and what was summed is multiplied by
one. Layers with a window have one share: a window is short.
"""

import triton
import triton.language as tl

from facet.kernels.dependent_launch import start_after_previous
from facet.kernels.paged_attention.tiles import load_queries, running_softmax, score_tile


# Not specialized: one kernel serves all steps.
@triton.jit(
    do_not_specialize=["first_tile", "pass_row", "num_shares"],
    do_not_specialize_on_alignment=["block_table", "positions", "last_visible", "seats", "tiles"],
)
def invariant_kernel(
    queries,
    keys,
    values,
    block_table,
    positions,
    last_visible,
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
    SHARED: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    PAIRS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    KEYS_PER_SHARE: tl.constexpr,
    PROGRAMS_PER_TILE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Some rows of one sequence, one key head, one share of its keys."""
    start_after_previous(IS_DEPENDENT)
    tile = tiles + (first_tile + tl.program_id(0) // PROGRAMS_PER_TILE) * 2
    skipped = tl.program_id(0) % PROGRAMS_PER_TILE * TOKENS
    kv_head, share = tl.program_id(1), tl.program_id(2)
    first_row = tl.load(tile) + skipped
    num_tokens = tl.minimum(tl.load(tile + 1) - skipped, TOKENS)
    if num_tokens <= 0:
        return
    first_position = tl.load(positions + first_row)
    context_len = tl.load(last_visible + first_row + num_tokens - 1) + 1  # no row sees less far than those before it
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
    last_keys = tl.load(last_visible + first_row + tokens, mask=is_row, other=0)
    vectors = (first_row + tokens).to(tl.int64) * num_heads + heads
    query, low_queries, high_queries = load_queries(
        queries, vectors, is_row, key_weight, SHARED, NUM_PAIRS, PAIRS_PAD, HEAD_DIM
    )
    block_row = block_table + tl.load(seats + first_row).to(tl.int64) * table_stride
    total = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    greatest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    # Tiles begin at `start`, `start` + BLOCK_N and so on, whatever the rows see of them.
    for offset in range(start, end, BLOCK_N):
        key_positions = offset + tl.arange(0, BLOCK_N)
        is_live = key_positions < end
        if HAS_WINDOW:
            is_live = is_live & (key_positions >= first_seen)
        scores, value, value_scale = score_tile(
            query, low_queries, high_queries, key_positions, is_live, keys, values, block_row, page_stride,
            token_stride, kv_head * HEAD_DIM, key_scales + kv_head * scale_head_stride,
            value_scales + kv_head * scale_head_stride, scale_page_stride, scale_token_stride, key_weight, cos_sin,
            HAS_SCALES, SHARED, NUM_PAIRS, PAIRS_PAD, HEAD_DIM, TOKENS_PER_BLOCK,
        )  # fmt: skip
        is_visible = is_live[None, :] & (key_positions[None, :] <= last_keys[:, None])
        if HAS_WINDOW:
            is_visible = is_visible & (key_positions[None, :] > query_positions[:, None] - window)
        scores = tl.where(is_visible, scores * scale, float("-inf"))
        weights, shrink, greatest, weight_sum = running_softmax(scores, greatest, weight_sum)
        if HAS_SCALES:
            weights *= value_scale[None, :]
        total = tl.dot(weights.to(value.dtype), value, total * shrink[:, None], input_precision="ieee")

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
def merge_invariant_kernel(
    partials,
    levels,
    last_visible,
    output,
    pass_row,
    num_shares,
    HEAD_DIM: tl.constexpr,
    KEYS_PER_SHARE: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Put the shares of one row and head together, in their order."""
    start_after_previous(IS_DEPENDENT)
    local, head, num_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = pass_row + local
    num_seen = tl.load(last_visible + row) // KEYS_PER_SHARE + 1
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
