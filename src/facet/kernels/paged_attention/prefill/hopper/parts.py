"""What the kernels have in common: layouts, barriers, masks, the running softmax, and the way back to memory.

A *tile* is 64 rows or 64 keys. Rows are tokens times the query heads that share a key head: row m is token m // GROUP.
"""

from torch import Tensor

from facet.kernels.gluon_names import (
    TensorDescriptor,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    thread_barrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from facet.kernels.gluon_parts import barriers, layout_of
from facet.kernels.paged_attention.prefill.visible import HIDDEN

# Tiles in shared memory, as copies write and products read them.
TILE_64 = gl.constexpr(gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16))
TILE_128 = gl.constexpr(gl.NVMMASharedLayout.get_default_for([64, 128], gl.bfloat16))
TILE_256 = gl.constexpr(gl.NVMMASharedLayout.get_default_for([64, 256], gl.bfloat16))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
# In the registers of a warpgroup: 64 x 64 scores, and 64 x 256 sums. Rows are placed alike in both.
SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
SCORE_ROWS = gl.constexpr(gl.SliceLayout(1, SCORES.value))
SCORE_KEYS = gl.constexpr(gl.SliceLayout(0, SCORES.value))
SUM_ROWS = gl.constexpr(gl.SliceLayout(1, SUMS.value))
# Results as they are stored, 128 or 256 dimensions at a time.
STORED_128 = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
STORED_256 = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))

# Three partitions of four warps. A thread of those that multiply gets 240 registers, of which sums take 128, and one of
# those that load what is left, 24: together as many as a launch with 168 for everybody has.
LAUNCH = {"num_warps": 4, "maxnreg": 168}


@gluon.jit
def scaled(sums, factors):
    """Each row times its factor, which lies as rows of scores do."""
    return sums * gl.expand_dims(gl.convert_layout(factors, SUM_ROWS), 1)


@gluon.jit
def masked(scores, first_key, first_own, window, HAS_WINDOW: gl.constexpr, GROUP: gl.constexpr):
    """Scores of keys first_key, ... that a row sees: those of its window up to its own, first_own for the first row.

    Most tiles are visible to every row and are left as they are.
    """
    is_edge = first_key + 64 > first_own + 1
    if HAS_WINDOW:
        is_edge = is_edge | (first_key <= first_own + (64 // GROUP - 1) - window)
    if is_edge:
        own = gl.expand_dims(first_own + gl.arange(0, 64, SCORE_ROWS) // GROUP, 1)
        keys = gl.expand_dims(first_key + gl.arange(0, 64, SCORE_KEYS), 0)
        is_visible = keys <= own
        if HAS_WINDOW:
            is_visible = is_visible & (keys > own - window)
        scores = gl.where(is_visible, scores, HIDDEN)
    return scores


@gluon.jit
def softmax_step(scores, greatest, weight_sum, scale):
    """(weights of a tile, the factor for what was summed before, the greatest score so far, the sum of weights)."""
    grown = gl.maximum(greatest, gl.max(scores, 1) * scale)
    shrink = gl.exp2(greatest - grown)
    weights = gl.exp2(scores * scale - gl.expand_dims(grown, 1))
    return weights.to(gl.bfloat16), shrink, grown, weight_sum * shrink + gl.sum(weights, 1)


@gluon.jit
def tile_of_program(tiles, num_keys, PROGRAMS_PER_TILE: gl.constexpr, GROUP: gl.constexpr):
    """(first row, number of tokens, first place in scratch, own key of the first row) of a program's 64 rows.

    Tiles of the plan have more rows, so several programs each. The last ones may be left without a token.
    """
    TOKENS: gl.constexpr = 64 // GROUP
    number = gl.program_id(0) % PROGRAMS_PER_TILE
    tile = tiles + gl.program_id(0) // PROGRAMS_PER_TILE * 4
    return (
        gl.load(tile) + number * TOKENS,
        gl.minimum(gl.load(tile + 1) - number * TOKENS, TOKENS),
        gl.load(tile + 2) + gl.program_id(1) * num_keys,
        gl.load(tile + 3) + number * TOKENS,
    )


@gluon.jit
def make_weights():
    """Room for the weights of two tiles and the factors that go with them: (tiles, factors, ready, free)."""
    tiles = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], TILE_64)
    shrinks = gl.allocate_shared_memory(gl.float32, [2, 64], PLAIN)
    return tiles, shrinks, barriers(2, 1), barriers(2, 1)


@gluon.jit
def hand_over(new_weights, shrink, weights, tile):
    """Give a tile's weights, and the factor for sums before it, to both warpgroups."""
    weight_tiles, shrinks, ready, free = weights
    side = tile % 2
    mbarrier.wait(free.index(side), (tile // 2 & 1) ^ 1)
    weight_tiles.index(side).store(new_weights)
    shrinks.index(side).store(shrink)
    fence_async_shared()
    thread_barrier()
    mbarrier.arrive(ready.index(side), count=1)


@gluon.jit
def sum_values(values, weights, num_tiles, BUFFERS: gl.constexpr):
    """All weights that are handed over times 256 dimensions of their values, which come in so many buffers."""
    value_tiles, values_ready, values_free = values
    weight_tiles, shrinks, weights_ready, weights_free = weights
    sums = gl.zeros([64, 256], gl.float32, SUMS)
    for tile in range(num_tiles):
        side = tile % 2
        buffer = tile % BUFFERS
        mbarrier.wait(weights_ready.index(side), tile // 2 & 1)
        sums = scaled(sums, shrinks.index(side).load(SCORE_ROWS))
        mbarrier.wait(values_ready.index(buffer), tile // BUFFERS & 1)
        added = warpgroup_mma(weight_tiles.index(side), value_tiles.index(buffer), sums, is_async=True)
        sums = warpgroup_mma_wait(0, deps=(added,))
        thread_barrier()
        mbarrier.arrive(values_free.index(buffer), count=1)
        mbarrier.arrive(weights_free.index(side), count=1)
    return sums


@gluon.jit
def store_rows(
    stage, numbers, output, dims, first_token, num_tokens, num_heads,
    HEAD_DIM: gl.constexpr, GROUP: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Write rows of a tile to `output`, which points to the tile's first; through `stage`, so that lines are whole."""
    stage.store(numbers)
    thread_barrier()
    members = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    tokens = first_token + members // GROUP
    rows = gl.expand_dims((tokens * num_heads + members % GROUP) * HEAD_DIM, 1)
    is_row = gl.expand_dims(tokens < num_tokens, 1)
    gl.store(output + rows + gl.expand_dims(dims, 0), stage.load(LAYOUT), mask=is_row)


def query_tiles(queries: Tensor, group: int) -> TensorDescriptor:
    """Queries as copies take them: the rows of a tile, which are `group` heads of some tokens."""
    block = (64 // group, group, queries.shape[2])
    return TensorDescriptor.from_tensor(queries, list(block), layout_of(block))
