"""What the kernels have in common: layouts, copies, the running softmax, shares, and the way back to memory.

A *tile* is 64 keys, and a product takes 8 query heads, some of them spare. Scores and weights are [keys, heads], and
sums of weighted values [dims, heads].
"""

from facet.kernels.paged_attention.decode.hopper.language import (
    arrives_last,
    commit_copies,
    copy_to_shared,
    gl,
    gluon,
    mma_v2,
)

TILE = gl.constexpr(64)
HEADS = gl.constexpr(8)
# Each of the four warps has 16 keys of the scores, and every fourth 16 dimensions of the sums.
SUMS = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, SUMS.value, 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, SUMS.value, 2))
OF_KEYS = gl.constexpr(gl.SliceLayout(1, SUMS.value))
OF_HEADS = gl.constexpr(gl.SliceLayout(0, SUMS.value))
# Vectors in shared memory.
SHARED = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
# Eight threads copy 128 bytes of a vector: each has few vectors to look up the pages of.
COPIES = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
# Queries as they are loaded, and sums as they are left to other programs.
QUERIES = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))
LEFT_BEHIND = gl.constexpr(gl.BlockedLayout([4, 1], [32, 1], [2, 2], [0, 1]))
VECTORS = gl.constexpr(gl.BlockedLayout([1, 4], [1, 32], [2, 2], [1, 0]))
STORED = gl.constexpr(gl.BlockedLayout([8, 1], [16, 2], [1, 4], [0, 1]))


@gluon.jit
def copy_tile_of(
    tiles, slot, vectors, block_row, key, end, page_stride,
    TOKEN_STRIDE: gl.constexpr, TOKENS_PER_BLOCK: gl.constexpr,
):  # fmt: skip
    """Start to copy the vectors of a tile; of tokens beyond the last, zeros."""
    tokens = key + gl.arange(0, tiles.shape[1], gl.SliceLayout(1, COPIES))
    dims = gl.arange(0, tiles.shape[2], gl.SliceLayout(0, COPIES))
    pages = gl.load(block_row + gl.minimum(tokens, end - 1) // TOKENS_PER_BLOCK).to(gl.int64)
    places = pages * page_stride + tokens % TOKENS_PER_BLOCK * TOKEN_STRIDE
    copy_to_shared(
        tiles.index(slot),
        vectors + gl.expand_dims(places, 1) + gl.expand_dims(dims, 0),
        mask=gl.expand_dims(tokens < end, 1),
    )
    commit_copies()


@gluon.jit
def load_queries(queries, row, kv_head, num_heads, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr):
    """[heads, dims], of spare heads zeros: they see what others see, so that no weights add up to zero."""
    member = gl.arange(0, HEADS, gl.SliceLayout(1, QUERIES))
    vectors = (row.to(gl.int64) * num_heads + kv_head * GROUP + member) * HEAD_DIM
    dims = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, QUERIES))
    places = gl.expand_dims(vectors, 1) + gl.expand_dims(dims, 0)
    return gl.load(queries + places, mask=gl.expand_dims(member < GROUP, 1), other=0.0)


@gluon.jit
def scores_of(tile, queries):
    """[keys, heads]: all dimensions, those of each half in a chain of its own. Each product waits for the one before it
    in its chain."""
    HALF: gl.constexpr = tile.shape[1] // 2
    nothing = gl.zeros([TILE, HEADS], gl.float32, SUMS)
    low = mma_v2(tile.slice(0, HALF, 1).load(LEFT), queries.slice(0, HALF, 1).permute((1, 0)).load(RIGHT), nothing)
    high = mma_v2(
        tile.slice(HALF, HALF, 1).load(LEFT), queries.slice(HALF, HALF, 1).permute((1, 0)).load(RIGHT), nothing
    )
    return low + high


@gluon.jit
def size_of_shares(num_keys, most, LEAST: gl.constexpr):
    """How many keys a share has where nothing bounds a context. There are 16 shares, since what they leave behind is
    read again by one program; where those would have more than 8 tiles, up to `most`, or one long context would leave
    processors idle."""
    share = num_keys * 0 + LEAST
    for _doubling in gl.static_range(3):
        share = gl.where(num_keys > 16 * share, 2 * share, share)
    for _doubling in gl.static_range(16):
        share = gl.where(num_keys > most * share, 2 * share, share)
    return share


@gluon.jit
def weigh(scores, key, end, scale, total, greatest, weight_sum, begins):
    """(Weights of a tile, whose first key is `key`, and the running state with them, but for the values)."""
    keys = key + gl.arange(0, TILE, OF_KEYS)
    scores = gl.where(gl.expand_dims(keys < end, 1), scores * scale, float("-inf"))
    before = gl.where(begins, float("-inf"), greatest)
    greatest = gl.maximum(before, gl.max(scores, 0))
    anchor = gl.where(greatest == float("-inf"), 0.0, greatest)
    weights = gl.exp(scores - gl.expand_dims(anchor, 0))
    shrink = gl.exp(before - anchor)
    weight_sum = gl.fma(weight_sum, shrink, gl.sum(weights, 0))
    total = gl.where(begins, 0.0, total * gl.expand_dims(shrink, 0))
    return weights, total, greatest, weight_sum


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
def leave_share(
    partial_totals, partial_levels, total, greatest, weight_sum, entry, kv_head, number, num_heads, most_shares,
    GROUP: gl.constexpr,
):  # fmt: skip
    """Stores a share for the last program of a row and key head to add."""
    NUM_DIMS: gl.constexpr = total.shape[0]
    member = gl.arange(0, HEADS, gl.SliceLayout(0, LEFT_BEHIND))
    is_member = member < GROUP
    place = (entry.to(gl.int64) * num_heads + kv_head * GROUP + member) * most_shares + number
    dims = gl.expand_dims(gl.arange(0, NUM_DIMS, gl.SliceLayout(1, LEFT_BEHIND)), 1)
    gl.store(
        partial_totals + gl.expand_dims(place * NUM_DIMS, 0) + dims,
        gl.convert_layout(total, LEFT_BEHIND),
        mask=gl.expand_dims(is_member, 0),
    )
    levels = partial_levels + 2 * place
    gl.store(levels, gl.convert_layout(greatest, gl.SliceLayout(0, LEFT_BEHIND)), mask=is_member)
    gl.store(levels + 1, gl.convert_layout(weight_sum, gl.SliceLayout(0, LEFT_BEHIND)), mask=is_member)


@gluon.jit
def store_means(output, merged, weight_sum, row, kv_head, num_heads, GROUP: gl.constexpr):
    NUM_DIMS: gl.constexpr = merged.shape[0]
    means = (merged / gl.expand_dims(weight_sum, 0)).to(output.dtype.element_ty)
    member = gl.arange(0, HEADS, gl.SliceLayout(0, STORED))
    dims = gl.expand_dims(gl.arange(0, NUM_DIMS, gl.SliceLayout(1, STORED)), 1)
    vectors = (row.to(gl.int64) * num_heads + kv_head * GROUP + member) * NUM_DIMS
    gl.store(
        output + gl.expand_dims(vectors, 0) + dims,
        gl.convert_layout(means, STORED),
        mask=gl.expand_dims(member < GROUP, 0),
    )


@gluon.jit
def add_left_shares(
    partial_totals, partial_levels, output, entry, row, kv_head, num_heads, num_shares, most_shares,
    GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, AT_ONCE: gl.constexpr,
):  # fmt: skip
    """All shares of one row and key head, from where their programs left them.

    The inner loop is unrolled for its loads to be on their way at once. They pass by the first-level cache, which is
    not told of others' stores.
    """
    heads = kv_head * GROUP + gl.arange(0, GROUP, gl.SliceLayout(1, VECTORS))
    dims = gl.expand_dims(gl.arange(0, HEAD_DIM, gl.SliceLayout(0, VECTORS)), 0)
    places = (entry.to(gl.int64) * num_heads + heads) * most_shares
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
def finish(
    output, merged, weight_sum, partial_totals, partial_levels, arrivals, entry, row, kv_head, num_heads,
    num_shares, own_shares, most_shares, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, AT_ONCE: gl.constexpr,
):  # fmt: skip
    """Store what a program has, if it has all shares; else what all of them left, if it is the last."""
    if own_shares >= num_shares:
        store_means(output, merged, weight_sum, row, kv_head, num_heads, GROUP)
    elif arrives_last(arrivals, entry * gl.num_programs(1) + kv_head, gl.cdiv(num_shares, own_shares)):
        add_left_shares(
            partial_totals, partial_levels, output, entry, row, kv_head, num_heads, num_shares,
            most_shares, GROUP, HEAD_DIM, AT_ONCE,
        )  # fmt: skip
