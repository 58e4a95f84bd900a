"""Decodes rows, in Gluon: four warps for some shares of a row and key head.

Keys are multiplied by queries and not the other way round, so that a product of 16 keys by 8 query heads is one
instruction, and few of those eight are spare. A warp takes 16 keys of a tile, and then some dimensions of all values:

    scores [keys, heads] = keys [keys, dims] x queries [dims, heads]
    sums [dims, heads] = values [dims, keys] x weights [keys, heads]

What sums are made of is the same as in `in_turn.py`: shares that follow from a row's context alone, added one after the
other by the program if it has all of them, and else by the last to finish. Within a window they begin at multiples of
16 positions, and are all of one size; else they grow with the context.

Keys and values take turns in a ring of tiles. Those that earlier steps have stored are on their way before the kernel
waits for the one before it, which stores those of this step.
"""

from facet.kernels.paged_attention.decode.hopper.language import (
    allocate_shared_memory,
    arrives_last,
    commit_copies,
    copy_to_shared,
    gl,
    gluon,
    let_next_start,
    mma_v2,
    thread_barrier,
    wait_for_copies,
    wait_for_previous,
)


@gluon.jit
def copy_tile_of(
    tiles, slot, vectors, block_row, key, first, end, page_stride,
    TOKEN_STRIDE: gl.constexpr, TOKENS_PER_BLOCK: gl.constexpr, COPIES: gl.constexpr,
):  # fmt: skip
    """Start to copy the vectors of a tile; of tokens that are not seen, zeros."""
    tokens = key + gl.arange(0, tiles.shape[1], gl.SliceLayout(1, COPIES))
    dims = gl.arange(0, tiles.shape[2], gl.SliceLayout(0, COPIES))
    pages = gl.load(block_row + gl.minimum(tokens, end - 1) // TOKENS_PER_BLOCK).to(gl.int64)
    places = pages * page_stride + tokens % TOKENS_PER_BLOCK * TOKEN_STRIDE
    is_seen = (tokens >= first) & (tokens < end)
    copy_to_shared(
        tiles.index(slot),
        vectors + gl.expand_dims(places, 1) + gl.expand_dims(dims, 0),
        mask=gl.expand_dims(is_seen, 1),
    )
    commit_copies()


@gluon.jit
def copy_item_of(
    item, tiles, keys, values, block_row, start, first, end, page_stride,
    TOKEN_STRIDE: gl.constexpr, TOKENS_PER_BLOCK: gl.constexpr, COPIES: gl.constexpr,
):  # fmt: skip
    """The keys of a tile, or its values."""
    vectors = keys if item % 2 == 0 else values
    copy_tile_of(
        tiles, item % tiles.shape[0], vectors, block_row, start + item // 2 * tiles.shape[1], first, end, page_stride,
        TOKEN_STRIDE, TOKENS_PER_BLOCK, COPIES,
    )  # fmt: skip


@gluon.jit
def add_share(merged, greatest, weight_sum, total, share_greatest, share_sum, AXIS: gl.constexpr):
    """(Sums of weighted values, greatest score, sum of weights) with those of one share more; heads are not on AXIS.

    Every rounding is written out: no compiler may choose others in another place. A share of which nothing is seen
    changes nothing.
    """
    new_greatest = gl.maximum(greatest, share_greatest)
    anchor = gl.where(new_greatest == float("-inf"), 0.0, new_greatest)
    shrink, share_shrink = gl.exp(greatest - anchor), gl.exp(share_greatest - anchor)
    merged = gl.fma(merged, gl.expand_dims(shrink, AXIS), total * gl.expand_dims(share_shrink, AXIS))
    return merged, new_greatest, gl.fma(weight_sum, shrink, share_sum * share_shrink)


@gluon.jit
def add_left_shares(
    partial_totals, partial_levels, output, entry, row, kv_head, num_heads, num_shares, MOST_SHARES: gl.constexpr,
    GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, AT_ONCE: gl.constexpr,
):  # fmt: skip
    """All shares of one row and key head, from where their programs left them.

    The inner loop is unrolled for its loads to be on their way at once. They pass by the first-level cache, which is
    not told of others' stores.
    """
    VECTORS: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [2, 2], [1, 0])
    heads = kv_head * GROUP + gl.arange(0, GROUP, gl.SliceLayout(1, VECTORS))
    dims = gl.expand_dims(gl.arange(0, HEAD_DIM, gl.SliceLayout(0, VECTORS)), 0)
    places = (entry.to(gl.int64) * num_heads + heads) * MOST_SHARES
    merged = gl.zeros([GROUP, HEAD_DIM], gl.float32, VECTORS)
    greatest = gl.full([GROUP], float("-inf"), gl.float32, gl.SliceLayout(1, VECTORS))
    weight_sum = gl.full([GROUP], 0.0, gl.float32, gl.SliceLayout(1, VECTORS))
    for first_share in range(0, num_shares, AT_ONCE):
        for step in gl.static_range(AT_ONCE):
            # Beyond the last share it is read again, and not added.
            share = gl.minimum(first_share + step, num_shares - 1)
            levels = partial_levels + 2 * (places + share)
            share_greatest = gl.load(levels, cache_modifier=".cg")
            share_sum = gl.load(levels + 1, cache_modifier=".cg")
            total = gl.load(
                partial_totals + gl.expand_dims((places + share) * HEAD_DIM, 1) + dims, cache_modifier=".cg"
            )
            is_live = first_share + step < num_shares
            with_share, new_greatest, new_sum = add_share(
                merged, greatest, weight_sum, total, share_greatest, share_sum, 1
            )
            merged = gl.where(is_live, with_share, merged)
            greatest = gl.where(is_live, new_greatest, greatest)
            weight_sum = gl.where(is_live, new_sum, weight_sum)
    vectors = gl.expand_dims((row.to(gl.int64) * num_heads + heads) * HEAD_DIM, 1)
    means = merged / gl.expand_dims(weight_sum, 1)
    gl.store(output + vectors + dims, means.to(output.dtype.element_ty))


@gluon.jit
def size_of_shares(num_keys, LEAST: gl.constexpr, MOST: gl.constexpr):
    """Where nothing bounds a context: 16 shares, as what they leave behind is read again by one program; where those
    would have more than 8 tiles, up to MOST, or one long context would leave processors idle."""
    share = num_keys * 0 + LEAST
    for _doubling in gl.static_range(3):
        share = gl.where(num_keys > 16 * share, 2 * share, share)
    for _doubling in gl.static_range(12):
        share = gl.where(num_keys > MOST * share, 2 * share, share)
    return share


# Not specialized: one kernel serves all batch sizes.
@gluon.jit(
    do_not_specialize=["least_keys"],
    do_not_specialize_on_alignment=["block_table", "positions", "seats", "row_map", "arrivals"],
)
def ring_kernel(
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
    table_stride,
    page_stride,
    num_heads,
    HAS_MAP: gl.constexpr,
    HAS_WINDOW: gl.constexpr,
    SHARE: gl.constexpr,  # keys of a share, or the least: 64 or twice as many, and so on
    MOST_SHARES: gl.constexpr,  # of a row: what they leave behind has room for as many
    IS_EARLY: gl.constexpr,  # of the keys that a row sees, only its own is stored in this step
    GROUP: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    TOKEN_STRIDE: gl.constexpr,
    TOKENS_PER_BLOCK: gl.constexpr,
    SLOTS: gl.constexpr,  # tiles of keys or of values in shared memory
    AT_ONCE: gl.constexpr,  # shares that the last program loads together
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    TILE: gl.constexpr = 64
    HEADS: gl.constexpr = 8
    LANES: gl.constexpr = HEAD_DIM // 8 if HEAD_DIM < 256 else 32
    # Eight threads copy 128 bytes of a vector: each has few vectors to look up the pages of.
    COPIES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    OF_HEADS: gl.constexpr = gl.SliceLayout(0, SUMS)
    LEVELS: gl.constexpr = gl.BlockedLayout([4, 1], [32, 1], [2, 2], [0, 1])

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
        share = size_of_shares(end, SHARE, MOST_SHARES)
    base = first // 16 * 16
    num_shares = gl.cdiv(end - base, share)
    own_shares = gl.maximum(gl.cdiv(num_shares, gl.num_programs(2)), least_keys // share)
    number = gl.program_id(2) * own_shares
    start = base + number * share
    stop = gl.minimum(start + own_shares * share, end)
    if start >= stop:
        wait_for_previous(IS_DEPENDENT)
        return
    block_row = block_table + gl.load(seats + row).to(gl.int64) * table_stride
    own_keys = keys + kv_head * HEAD_DIM
    own_values = values + kv_head * HEAD_DIM
    tiles = allocate_shared_memory(keys.dtype.element_ty, [SLOTS, TILE, HEAD_DIM], SHARED)
    for item in gl.static_range(SLOTS):
        if IS_EARLY and start + (item // 2 + 1) * TILE < end:
            copy_item_of(
                item, tiles, own_keys, own_values, block_row, start, first, stop, page_stride, TOKEN_STRIDE,
                TOKENS_PER_BLOCK, COPIES,
            )  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    for item in gl.static_range(SLOTS):
        if not IS_EARLY or start + (item // 2 + 1) * TILE >= end:
            copy_item_of(
                item, tiles, own_keys, own_values, block_row, start, first, stop, page_stride, TOKEN_STRIDE,
                TOKENS_PER_BLOCK, COPIES,
            )  # fmt: skip

    QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [4, 1], [1, 0])
    member = gl.arange(0, HEADS, gl.SliceLayout(1, QUERY))
    vectors = (row.to(gl.int64) * num_heads + kv_head * GROUP + member) * HEAD_DIM
    dims = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, QUERY))
    query = gl.load(
        queries + gl.expand_dims(vectors, 1) + gl.expand_dims(dims, 0),
        mask=gl.expand_dims(member < GROUP, 1),
        other=0.0,
    )
    query = gl.convert_layout(gl.permute(query, (1, 0)), RIGHT)

    total = gl.zeros([HEAD_DIM, HEADS], gl.float32, SUMS)
    greatest = gl.full([HEADS], float("-inf"), gl.float32, OF_HEADS)
    weight_sum = gl.full([HEADS], 0.0, gl.float32, OF_HEADS)
    merged, greatest_of_all, sum_of_all = total, greatest, weight_sum
    left_member = gl.arange(0, HEADS, gl.SliceLayout(0, LEVELS))
    left_dims = gl.expand_dims(gl.arange(0, HEAD_DIM, gl.SliceLayout(1, LEVELS)), 1)
    left_places = (entry.to(gl.int64) * num_heads + kv_head * GROUP + left_member) * MOST_SHARES
    is_alone = own_shares >= num_shares
    tile_key = gl.arange(0, TILE, gl.SliceLayout(1, SUMS))

    num_tiles = gl.cdiv(stop - start, TILE)
    for tile in range(0, num_tiles):
        wait_for_copies(SLOTS - 1)
        thread_barrier()
        scores = gl.zeros([TILE, HEADS], gl.float32, SUMS)
        scores = mma_v2(tiles.index(2 * tile % SLOTS).load(LEFT), query, scores)
        key = start + tile * TILE + tile_key
        is_seen = (key >= first) & (key < stop)
        scores = gl.where(gl.expand_dims(is_seen, 1), scores * scale, float("-inf"))
        begins = (tile * TILE & (share - 1)) == 0
        before = gl.where(begins, float("-inf"), greatest)
        greatest = gl.maximum(before, gl.max(scores, 0))
        anchor = gl.where(greatest == float("-inf"), 0.0, greatest)
        weights = gl.exp(scores - gl.expand_dims(anchor, 0))
        shrink = gl.exp(before - anchor)
        weight_sum = gl.fma(weight_sum, shrink, gl.sum(weights, 0))
        total = gl.where(begins, 0.0, total * gl.expand_dims(shrink, 0))
        # All warps have read these keys to have the greatest score: the next tile may take their place.
        copy_item_of(
            2 * tile + SLOTS, tiles, own_keys, own_values, block_row, start, first, stop, page_stride, TOKEN_STRIDE,
            TOKENS_PER_BLOCK, COPIES,
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
                left = left_places + number
                is_member = left_member < GROUP
                gl.store(
                    partial_totals + gl.expand_dims(left * HEAD_DIM, 0) + left_dims,
                    gl.convert_layout(total, LEVELS),
                    mask=gl.expand_dims(is_member, 0),
                )
                levels = partial_levels + 2 * left
                gl.store(levels, gl.convert_layout(greatest, gl.SliceLayout(0, LEVELS)), mask=is_member)
                gl.store(levels + 1, gl.convert_layout(weight_sum, gl.SliceLayout(0, LEVELS)), mask=is_member)
                number += 1
        thread_barrier()
        copy_item_of(
            2 * tile + 1 + SLOTS, tiles, own_keys, own_values, block_row, start, first, stop, page_stride, TOKEN_STRIDE,
            TOKENS_PER_BLOCK, COPIES,
        )  # fmt: skip
    wait_for_copies(0)

    if is_alone:
        OUT: gl.constexpr = gl.BlockedLayout([8, 1], [LANES, 32 // LANES], [1, 4], [0, 1])
        # Spare heads see what others see, so that no weights add up to zero.
        means = (merged / gl.expand_dims(sum_of_all, 0)).to(output.dtype.element_ty)
        heads = gl.arange(0, HEADS, gl.SliceLayout(0, OUT))
        out_dims = gl.expand_dims(gl.arange(0, HEAD_DIM, gl.SliceLayout(1, OUT)), 1)
        out_vectors = (row.to(gl.int64) * num_heads + kv_head * GROUP + heads) * HEAD_DIM
        gl.store(
            output + gl.expand_dims(out_vectors, 0) + out_dims,
            gl.convert_layout(means, OUT),
            mask=gl.expand_dims(heads < GROUP, 0),
        )
    else:
        num_arriving = gl.cdiv(num_shares, own_shares)
        if arrives_last(arrivals, entry * gl.num_programs(1) + kv_head, num_arriving):
            add_left_shares(
                partial_totals, partial_levels, output, entry, row, kv_head, num_heads, num_shares, MOST_SHARES,
                GROUP, HEAD_DIM, AT_ONCE,
            )  # fmt: skip
