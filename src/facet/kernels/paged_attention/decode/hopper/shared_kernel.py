"""Decodes rows of shared vectors, in Gluon, as `separate_kernel.py` does those of separate ones.

A tile is loaded once and serves as keys and values. The key of a stored value v is rotate(w * v), and some pairs of
dimensions rotate, those at the beginning of both halves: they are rotated in registers. All others meet w * q as they
are, and those that rotate meet zeros there.
"""

from facet.kernels.paged_attention.decode.hopper.language import (
    allocate_shared_memory,
    gl,
    gluon,
    let_next_start,
    mma_v2,
    thread_barrier,
    wait_for_copies,
    wait_for_previous,
)
from facet.kernels.paged_attention.decode.hopper.parts import (
    HEADS,
    LEFT,
    OF_HEADS,
    QUERIES,
    RIGHT,
    SHARED,
    SUMS,
    TILE,
    add_share,
    copy_tile_of,
    finish,
    leave_share,
    load_queries,
    scores_of,
    size_of_shares,
    weigh,
)


@gluon.jit
def angles_of(cos_sin, key, end, PAIRS: gl.constexpr):
    """(Cosines, sines) of the keys of a tile."""
    pairs = gl.expand_dims(gl.arange(0, PAIRS, gl.SliceLayout(0, LEFT)), 0)
    keys = gl.expand_dims(gl.minimum(key + gl.arange(0, TILE, gl.SliceLayout(1, LEFT)), end - 1), 1)
    angles = cos_sin + keys * (2 * PAIRS) + pairs
    return gl.load(angles), gl.load(angles + PAIRS)


@gluon.jit
def rotated_scores(tile, queries, cos, sin, key_weight):
    """[keys, heads]: of the dimensions that rotate."""
    PAIRS: gl.constexpr = cos.shape[1]
    HIGH: gl.constexpr = tile.shape[1] // 2
    dtype: gl.constexpr = tile.dtype
    pairs = gl.expand_dims(gl.arange(0, PAIRS, gl.SliceLayout(0, LEFT)), 0)
    cos, sin = cos.to(gl.float32), sin.to(gl.float32)
    low = tile.slice(0, PAIRS, 1).load(LEFT).to(gl.float32) * gl.load(key_weight + pairs)
    high = tile.slice(HIGH, PAIRS, 1).load(LEFT).to(gl.float32) * gl.load(key_weight + HIGH + pairs)
    low_keys = (low * cos - high * sin).to(dtype)
    high_keys = (high * cos + low * sin).to(dtype)
    scores = gl.zeros([TILE, HEADS], gl.float32, SUMS)
    scores = mma_v2(low_keys, queries.slice(0, PAIRS, 1).permute((1, 0)).load(RIGHT), scores)
    return mma_v2(high_keys, queries.slice(HIGH, PAIRS, 1).permute((1, 0)).load(RIGHT), scores)


# Not specialized: one kernel serves all batch sizes.
@gluon.jit(
    do_not_specialize=["least_keys", "most_shares"],
    do_not_specialize_on_alignment=["block_table", "positions", "seats", "row_map", "arrivals"],
)
def shared_kernel(
    queries,
    vectors,
    key_weight,  # [HEAD_DIM]
    cos_sin,  # [positions, 2, PAIRS]
    block_table,
    positions,
    seats,
    row_map,
    output,
    partial_totals,  # of shares, where a row has more than one program
    partial_levels,  # the greatest score, and the sum of weights
    arrivals,  # of programs, zero before and after
    scale,
    least_keys,  # a program has no fewer, if the row has them
    most_shares,  # of a row: what they leave behind has room for as many
    table_stride,
    page_stride,
    num_heads,
    HAS_MAP: gl.constexpr,
    SHARE: gl.constexpr,  # keys of the smallest shares
    GROUP: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    PAIRS: gl.constexpr,
    TOKEN_STRIDE: gl.constexpr,
    TOKENS_PER_BLOCK: gl.constexpr,
    SLOTS: gl.constexpr,  # tiles in shared memory
    AT_ONCE: gl.constexpr,  # shares that the last program loads together
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    entry, kv_head = gl.program_id(0), gl.program_id(1)
    row = entry
    if HAS_MAP:
        row = gl.load(row_map + entry)
    end = gl.load(positions + row) + 1
    share = size_of_shares(end, most_shares, SHARE)
    num_shares = gl.cdiv(end, share)
    own_shares = gl.maximum(gl.cdiv(num_shares, gl.num_programs(2)), least_keys // share)
    number = gl.program_id(2) * own_shares
    start = number * share
    stop = gl.minimum(start + own_shares * share, end)
    if start >= stop:
        wait_for_previous(IS_DEPENDENT)
        return
    block_row = block_table + gl.load(seats + row).to(gl.int64) * table_stride
    own_vectors = vectors + kv_head * HEAD_DIM
    dtype: gl.constexpr = vectors.dtype.element_ty
    tiles = allocate_shared_memory(dtype, [SLOTS, TILE, HEAD_DIM], SHARED)
    still_queries = allocate_shared_memory(dtype, [HEADS, HEAD_DIM], SHARED)
    plain_queries = allocate_shared_memory(dtype, [HEADS, HEAD_DIM], SHARED)
    wait_for_previous(IS_DEPENDENT)
    for tile in gl.static_range(SLOTS):
        copy_tile_of(
            tiles, tile, own_vectors, block_row, start + tile * TILE, stop, page_stride,
            TOKEN_STRIDE, TOKENS_PER_BLOCK,
        )  # fmt: skip
    query = load_queries(queries, row, kv_head, num_heads, GROUP, HEAD_DIM)
    dims = gl.expand_dims(gl.arange(0, HEAD_DIM, gl.SliceLayout(0, QUERIES)), 0)
    still_weight = gl.where(dims % (HEAD_DIM // 2) < PAIRS, 0.0, gl.load(key_weight + dims))
    plain_queries.store(query)
    still_queries.store((query.to(gl.float32) * still_weight).to(dtype))

    total = gl.zeros([HEAD_DIM, HEADS], gl.float32, SUMS)
    greatest = gl.full([HEADS], float("-inf"), gl.float32, OF_HEADS)
    weight_sum = gl.full([HEADS], 0.0, gl.float32, OF_HEADS)
    merged, greatest_of_all, sum_of_all = total, greatest, weight_sum
    is_alone = own_shares >= num_shares
    num_tiles = gl.cdiv(stop - start, TILE)
    for tile in range(0, num_tiles):
        key = start + tile * TILE
        slot = tile % SLOTS
        cos, sin = angles_of(cos_sin, key, stop, PAIRS)
        wait_for_copies(SLOTS - 1)
        thread_barrier()
        scores = scores_of(tiles.index(slot), still_queries)
        scores += rotated_scores(tiles.index(slot), plain_queries, cos, sin, key_weight)
        begins = (tile * TILE & (share - 1)) == 0
        weights, total, greatest, weight_sum = weigh(scores, key, stop, scale, total, greatest, weight_sum, begins)
        weights = gl.convert_layout(weights.to(dtype), RIGHT)
        total = mma_v2(tiles.index(slot).permute((1, 0)).load(LEFT), weights, total)
        if ((tile + 1) * TILE & (share - 1)) == 0 or tile + 1 == num_tiles:
            if is_alone:
                merged, greatest_of_all, sum_of_all = add_share(
                    merged, greatest_of_all, sum_of_all, total, greatest, weight_sum, 0
                )
            else:
                leave_share(
                    partial_totals, partial_levels, total, greatest, weight_sum, entry, kv_head, number, num_heads,
                    most_shares, GROUP,
                )  # fmt: skip
                number += 1
        thread_barrier()
        copy_tile_of(
            tiles, slot, own_vectors, block_row, key + SLOTS * TILE, stop, page_stride,
            TOKEN_STRIDE, TOKENS_PER_BLOCK,
        )  # fmt: skip
    wait_for_copies(0)
    finish(
        output, merged, sum_of_all, partial_totals, partial_levels, arrivals, entry, row, kv_head, num_heads,
        num_shares, own_shares, most_shares, GROUP, HEAD_DIM, AT_ONCE,
    )  # fmt: skip
