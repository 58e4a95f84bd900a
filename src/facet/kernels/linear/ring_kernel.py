"""Products of few rows in one chain of sums (`chain.py`), in Gluon: bound by reading the weight once.

A warp multiplies 16 outputs by 8 or 16 rows, 16 inputs after 16 (`mma.sync`). It would do nothing but wait, for the
weight or for the product before, so what it needs comes through a ring of tiles in shared memory:

    memory ──► ring of STAGES tiles ──► registers of the next tile ──► registers of this one ──► sums

The weight's first tiles, as many as the ring holds, are on their way before the kernel waits for the one before it.
While others norm and attend, the multiprocessors already read what comes next.
"""

from facet.kernels.linear.language import (
    allocate_shared_memory,
    commit_copies,
    copy_to_shared,
    gl,
    gluon,
    let_next_start,
    let_through,
    mma_v2,
    thread_barrier,
    wait_for_copies,
    wait_for_previous,
)


@gluon.jit
def copy_tile_of(places, is_live, tiles, tile, NUM_IN: gl.constexpr, COPIES: gl.constexpr, POLICY: gl.constexpr):
    """Start to copy a tile to its place in the ring; of inputs that are not there, zeros."""
    STAGES: gl.constexpr = tiles.shape[0]
    BLOCK_IN: gl.constexpr = tiles.shape[2]
    columns = tile * BLOCK_IN + gl.arange(0, BLOCK_IN, gl.SliceLayout(0, COPIES))
    copy_to_shared(
        tiles.index(tile % STAGES),
        places + tile * BLOCK_IN,
        mask=is_live & gl.expand_dims(columns < NUM_IN, 0),
        eviction_policy=POLICY,
    )


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["num_rows"])
def ring_kernel(
    x,
    weight,
    gated,
    output,
    x_stride,
    weight_stride,
    gated_stride,
    num_rows,
    num_out,
    NUM_IN: gl.constexpr,
    IS_GATED: gl.constexpr,  # GeGLU
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    ROWS: gl.constexpr,
    BLOCK_IN: gl.constexpr,
    STAGES: gl.constexpr,
    NUM_WARPS: gl.constexpr,  # each of its own outputs
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    BLOCK_OUT: gl.constexpr = 16 * NUM_WARPS
    OUT_PER_PROGRAM: gl.constexpr = BLOCK_OUT // 2 if IS_GATED else BLOCK_OUT
    NUM_TILES: gl.constexpr = (NUM_IN + BLOCK_IN - 1) // BLOCK_IN
    LANES: gl.constexpr = 32 if BLOCK_IN >= 256 else BLOCK_IN // 8
    COPIES: gl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [NUM_WARPS, 1], [1, 0])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [NUM_WARPS, 1], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])

    # Programs that share a tile of the weight run side by side: one reads it from memory, the others from the cache.
    num_row_groups = gl.cdiv(num_rows, ROWS)
    first_row = gl.program_id(0) % num_row_groups * ROWS
    first_out = gl.program_id(0) // num_row_groups * OUT_PER_PROGRAM

    # Beyond the last output that one is read again, which needs no mask; the store drops the result.
    local = gl.arange(0, BLOCK_OUT, gl.SliceLayout(1, COPIES))
    if IS_GATED:
        # A warp has eight gates, then their ups.
        weight_row = gl.minimum(first_out + local // 16 * 8 + local % 8, num_out - 1) + local % 16 // 8 * num_out
    else:
        weight_row = gl.minimum(first_out + local, num_out - 1)
    column = gl.arange(0, BLOCK_IN, gl.SliceLayout(0, COPIES))
    weight_places = weight + gl.expand_dims(weight_row.to(gl.int64) * weight_stride, 1) + gl.expand_dims(column, 0)
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, COPIES))
    is_row = gl.expand_dims(row < num_rows, 1)
    x_places = x + gl.expand_dims(row.to(gl.int64) * x_stride, 1) + gl.expand_dims(column, 0)
    is_output = gl.expand_dims(local >= 0, 1)

    weight_tiles = allocate_shared_memory(weight.dtype.element_ty, [STAGES, BLOCK_OUT, BLOCK_IN], SHARED)
    x_tiles = allocate_shared_memory(x.dtype.element_ty, [STAGES, ROWS, BLOCK_IN], SHARED)
    for tile in gl.static_range(STAGES):
        copy_tile_of(weight_places, is_output, weight_tiles, tile, NUM_IN, COPIES, "evict_first")
        commit_copies()
    wait_for_previous(IS_DEPENDENT)
    for tile in gl.static_range(STAGES):
        copy_tile_of(x_places, is_row, x_tiles, tile, NUM_IN, COPIES, "")
        commit_copies()

    wait_for_copies(STAGES - 1)
    thread_barrier()
    left = weight_tiles.index(0).load(LEFT)
    right = x_tiles.index(0).permute((1, 0)).load(RIGHT)
    sums = gl.zeros([BLOCK_OUT, ROWS], gl.float32, SUMS)
    for tile in range(0, NUM_TILES - 1):
        wait_for_copies(STAGES - 2)
        thread_barrier()
        # This tile is in registers, so that another may take its place: after the last, one that nobody reads.
        copy_tile_of(weight_places, is_output, weight_tiles, tile + STAGES, NUM_IN, COPIES, "evict_first")
        copy_tile_of(x_places, is_row, x_tiles, tile + STAGES, NUM_IN, COPIES, "")
        commit_copies()
        next_left = weight_tiles.index((tile + 1) % STAGES).load(LEFT)
        next_right = x_tiles.index((tile + 1) % STAGES).permute((1, 0)).load(RIGHT)
        sums = mma_v2(left, right, sums)
        left, right = next_left, next_right
    sums = mma_v2(left, right, sums)
    wait_for_copies(0)

    result = sums.to(output.dtype.element_ty)
    local = gl.arange(0, BLOCK_OUT, gl.SliceLayout(1, SUMS))
    if IS_GATED:
        local = local // 16 * 8 + local % 8
    column = gl.expand_dims(first_out + local, 1)
    row = gl.expand_dims(first_row + gl.arange(0, ROWS, gl.SliceLayout(0, SUMS)), 0)
    is_there = (row < num_rows) & (column < num_out)
    places = row.to(gl.int64) * num_out + column
    if IS_GATED:
        gate, up = gates_and_ups(result)
        result = let_through(gate, up)
        is_there, _ = gates_and_ups(is_there)
        places, _ = gates_and_ups(places)
    elif HAS_GATED_INPUT:
        given = gl.load(gated + row.to(gl.int64) * gated_stride + column, mask=is_there, other=0.0)
        result = let_through(result, given)
    gl.store(output + places, result, mask=is_there)


@gluon.jit
def gates_and_ups(values):
    """[outputs, rows] -> two of [warps, 8, rows]."""
    return gl.split(gl.permute(gl.reshape(values, [values.shape[0] // 16, 2, 8, values.shape[1]]), (0, 2, 3, 1)))
