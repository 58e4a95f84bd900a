"""Decodes rows of separate keys and values, in Gluon: four warps for some shares of a row and key head.

Keys are multiplied by queries and not the other way round, so that a product of 16 keys by 8 query heads is one
instruction, and few of those eight are spare. A warp takes 16 keys of a tile, and then some dimensions of all values:

    scores [keys, heads] = keys [keys, dims] x queries [dims, heads]
    sums [dims, heads] = values [dims, keys] x weights [keys, heads]

What sums are made of is the same as in `in_turn.py`: shares that follow from a row's context alone, added one after the
other by the program if it has all of them, and else by the last to finish. Within a window they are all of one size;
else they grow with the context.

Keys and values take turns in a ring of tiles.
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
def copy_item_of(
    item, tiles, keys, values, block_row, start, end, page_stride,
    TOKEN_STRIDE: gl.constexpr, TOKENS_PER_BLOCK: gl.constexpr,
):  # fmt: skip
    """The keys of a tile, or its values."""
    vectors = keys if item % 2 == 0 else values
    copy_tile_of(
        tiles, item % tiles.shape[0], vectors, block_row, start + item // 2 * TILE, end, page_stride,
        TOKEN_STRIDE, TOKENS_PER_BLOCK,
    )  # fmt: skip


# Not specialized: one kernel serves all batch sizes.
@gluon.jit(
    do_not_specialize=["least_keys", "most_shares"],
    do_not_specialize_on_alignment=["block_table", "positions", "seats", "row_map", "arrivals"],
)
def separate_kernel(
    queries,
    keys,
    values,
    block_table,
    positions,
    seats,
    row_map,
    output,
    partial_totals,  # of shares, where a row has more than one program
    partial_levels,  # the greatest score, and the sum of weights
    arrivals,  # of programs, zero before and after
    scale,
    window,
    least_keys,  # a program has no fewer, if the row has them
    most_shares,  # of a row: what they leave behind has room for as many
    table_stride,
    page_stride,
    num_heads,
    HAS_MAP: gl.constexpr,
    HAS_WINDOW: gl.constexpr,
    SHARE: gl.constexpr,  # keys of a share, or the least: 64 or twice as many, and so on
    GROUP: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    TOKEN_STRIDE: gl.constexpr,
    TOKENS_PER_BLOCK: gl.constexpr,
    SLOTS: gl.constexpr,  # tiles of keys or of values in shared memory
    AT_ONCE: gl.constexpr,  # shares that the last program loads together
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    entry, kv_head = gl.program_id(0), gl.program_id(1)
    row = entry
    if HAS_MAP:
        row = gl.load(row_map + entry)
    end = gl.load(positions + row) + 1
    if HAS_WINDOW:
        first = gl.maximum(end - window, 0)
        share = SHARE
    else:
        first = end * 0
        share = size_of_shares(end, most_shares, SHARE)
    num_shares = gl.cdiv(end - first, share)
    own_shares = gl.maximum(gl.cdiv(num_shares, gl.num_programs(2)), least_keys // share)
    number = gl.program_id(2) * own_shares
    start = first + number * share
    stop = gl.minimum(start + own_shares * share, end)
    if start >= stop:
        wait_for_previous(IS_DEPENDENT)
        return
    block_row = block_table + gl.load(seats + row).to(gl.int64) * table_stride
    own_keys = keys + kv_head * HEAD_DIM
    own_values = values + kv_head * HEAD_DIM
    tiles = allocate_shared_memory(keys.dtype.element_ty, [SLOTS, TILE, HEAD_DIM], SHARED)
    query_tile = allocate_shared_memory(keys.dtype.element_ty, [HEADS, HEAD_DIM], SHARED)
    wait_for_previous(IS_DEPENDENT)
    for item in gl.static_range(SLOTS):
        copy_item_of(
            item, tiles, own_keys, own_values, block_row, start, stop, page_stride,
            TOKEN_STRIDE, TOKENS_PER_BLOCK,
        )  # fmt: skip
    query_tile.store(load_queries(queries, row, kv_head, num_heads, GROUP, HEAD_DIM))

    total = gl.zeros([HEAD_DIM, HEADS], gl.float32, SUMS)
    greatest = gl.full([HEADS], float("-inf"), gl.float32, OF_HEADS)
    weight_sum = gl.full([HEADS], 0.0, gl.float32, OF_HEADS)
    merged, greatest_of_all, sum_of_all = total, greatest, weight_sum
    is_alone = own_shares >= num_shares
    num_tiles = gl.cdiv(stop - start, TILE)
    for tile in range(0, num_tiles):
        wait_for_copies(SLOTS - 1)
        thread_barrier()
        scores = scores_of(tiles.index(2 * tile % SLOTS), query_tile)
        begins = (tile * TILE & (share - 1)) == 0
        weights, total, greatest, weight_sum = weigh(
            scores, start + tile * TILE, stop, scale, total, greatest, weight_sum, begins
        )
        # All warps have read these keys to have the greatest score: the next tile may take their place.
        copy_item_of(
            2 * tile + SLOTS, tiles, own_keys, own_values, block_row, start, stop, page_stride,
            TOKEN_STRIDE, TOKENS_PER_BLOCK,
        )  # fmt: skip
        weights = gl.convert_layout(weights.to(values.dtype.element_ty), RIGHT)
        wait_for_copies(SLOTS - 1)
        thread_barrier()
        total = mma_v2(tiles.index((2 * tile + 1) % SLOTS).permute((1, 0)).load(LEFT), weights, total)
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
        copy_item_of(
            2 * tile + 1 + SLOTS, tiles, own_keys, own_values, block_row, start, stop, page_stride,
            TOKEN_STRIDE, TOKENS_PER_BLOCK,
        )  # fmt: skip
    wait_for_copies(0)
    finish(
        output, merged, sum_of_all, partial_totals, partial_levels, arrivals, entry, row, kv_head, num_heads,
        num_shares, own_shares, most_shares, GROUP, HEAD_DIM, AT_ONCE,
    )  # fmt: skip
