"""Products of few rows in one chain of sums (`chain.py`) by the products of Hopper's warpgroups, in Gluon.

A product of one warp waits for the one before it, of whose chain there are hundreds: down of E4B has 640, which take
two thirds of its time in `ring_kernel.py`. Products of a warpgroup (`wgmma`) follow each other more closely. They have
64 rows, though, so x is the left operand here, and the weight, whose outputs would not be enough for all
multiprocessors 64 at a time, is the right one:

    left    64 rows of x, of which 8, 16, 32 or all are there
    right   8 to 256 outputs

Both are in shared memory. What the other rows are does not matter, for nobody reads their sums. They are whatever lies
behind x: eight rows of 64 inputs are 1 KB, and the next eight are read from the next KB.

Both operands come through a ring of tiles that a single thread asks for (TMA). The products of a tile are started all
at once, behind those of the tile before, and while they run the next tile is waited for. A tile's place is taken again
when its own are done and those behind it have been started.

The weight's first tiles are on their way before the kernel waits for the one before it.
"""

from facet.kernels.gluon_parts import barriers
from facet.kernels.linear.language import (
    copy_tile,
    gl,
    gluon,
    let_next_start,
    let_through,
    mbarrier,
    thread_barrier,
    wait_for_previous,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Of inputs, as copies write and products read them.
WIDTH = gl.constexpr(64)
ALL_ROWS = gl.constexpr(gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16))


@gluon.jit
def _expect(x_tiles, weight_tiles, ready, tile):
    """A tile of the weight and one of x, which may be asked for later."""
    NUM_NUMBERS: gl.constexpr = (weight_tiles.shape[1] + x_tiles.shape[1]) * weight_tiles.shape[2]
    mbarrier.expect(ready.index(tile % weight_tiles.shape[0]), NUM_NUMBERS * 2)


@gluon.jit
def _copy_weights(weight, part_tiles, ready, tile, first_out):
    slot = tile % part_tiles.shape[0]
    copy_tile(weight, [0, first_out, tile * part_tiles.shape[3]], ready.index(slot), part_tiles.index(slot))


@gluon.jit
def _copy_rows(x, x_tiles, ready, tile, first_row, STAGES: gl.constexpr):
    slot = tile % STAGES
    copy_tile(x, [first_row, tile * x_tiles.shape[2]], ready.index(slot), x_tiles.index(slot))


@gluon.jit
def _refill(sources, buffers, tile, first_row, first_out, NUM_TILES: gl.constexpr):
    """The place of the tile before, whose products are done."""
    x, weight = sources
    x_tiles, part_tiles, weight_tiles, ready = buffers
    STAGES: gl.constexpr = weight_tiles.shape[0]
    next_tile = tile - 1 + STAGES
    if next_tile < NUM_TILES:
        _expect(x_tiles, weight_tiles, ready, next_tile)
        thread_barrier()  # now they are in all warps
        _copy_weights(weight, part_tiles, ready, next_tile, first_out)
        _copy_rows(x, x_tiles, ready, next_tile, first_row, STAGES)


@gluon.jit
def _start(sums, buffers, tile):
    """The products of a tile, behind those under way."""
    x_tiles, _, weight_tiles, ready = buffers
    STAGES: gl.constexpr = weight_tiles.shape[0]
    BLOCK_IN: gl.constexpr = weight_tiles.shape[2]
    slot = tile % STAGES
    mbarrier.wait(ready.index(slot), tile // STAGES & 1)
    for start in gl.static_range(0, BLOCK_IN, WIDTH):
        rows = x_tiles.index(slot).slice(start, WIDTH, dim=1)._reinterpret(x_tiles.dtype, [64, WIDTH], ALL_ROWS)
        weights = weight_tiles.index(slot).slice(start, WIDTH, dim=1)
        sums = warpgroup_mma(rows, weights.permute((1, 0)), sums, is_async=True)
    return sums


@gluon.jit
def _sums(sources, buffers, sums, first_row, first_out, NUM_TILES: gl.constexpr):
    NUM_STARTED: gl.constexpr = buffers[2].shape[2] // WIDTH  # of a tile
    started = _start(sums, buffers, 0)
    sums = warpgroup_mma_wait(NUM_STARTED, deps=(started,))
    for tile in range(1, NUM_TILES):
        started = _start(sums, buffers, tile)
        sums = warpgroup_mma_wait(NUM_STARTED, deps=(started,))
        _refill(sources, buffers, tile, first_row, first_out, NUM_TILES)
    return warpgroup_mma_wait(0, deps=(sums,))


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["num_rows"])
def warpgroup_ring_kernel(
    x,  # tiles of it
    weight,  # tiles of [1 or 2, outputs, inputs]: gates and ups apart
    gated,
    output,
    gated_stride,
    num_rows,
    num_out,
    NUM_IN: gl.constexpr,
    IS_GATED: gl.constexpr,  # GeGLU
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    ROWS: gl.constexpr,  # of x, in a program: 8, 16, 32 or 64
    BLOCK_OUT: gl.constexpr,
    BLOCK_IN: gl.constexpr,
    STAGES: gl.constexpr,
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    NUM_PARTS: gl.constexpr = 2 if IS_GATED else 1
    NUM_TILES: gl.constexpr = (NUM_IN + BLOCK_IN - 1) // BLOCK_IN
    NUM_FIRST: gl.constexpr = STAGES if STAGES < NUM_TILES else NUM_TILES
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_OUT, 16])
    RESULTS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_OUT // NUM_PARTS, 16])

    # Programs that share a tile of the weight run side by side: one reads it from memory, the others from the cache.
    num_row_groups = gl.cdiv(num_rows, ROWS)
    first_row = gl.program_id(0) % num_row_groups * ROWS
    first_out = gl.program_id(0) // num_row_groups * (BLOCK_OUT // NUM_PARTS)

    part_tiles = gl.allocate_shared_memory(
        weight.dtype, [STAGES, NUM_PARTS, BLOCK_OUT // NUM_PARTS, BLOCK_IN], weight.layout
    )
    weight_tiles = part_tiles._reinterpret(
        weight.dtype,
        [STAGES, BLOCK_OUT, BLOCK_IN],
        gl.NVMMASharedLayout.get_default_for([BLOCK_OUT, BLOCK_IN], weight.dtype),
    )
    # So many more as there is room for the rows that are read behind those of the last.
    NUM_BEHIND: gl.constexpr = ((64 - ROWS) * WIDTH + ROWS * BLOCK_IN - 1) // (ROWS * BLOCK_IN)
    x_tiles = gl.allocate_shared_memory(x.dtype, [STAGES + NUM_BEHIND, ROWS, BLOCK_IN], x.layout)
    ready = barriers(STAGES, 1)
    for tile in gl.static_range(NUM_FIRST):
        _expect(x_tiles, weight_tiles, ready, tile)
        _copy_weights(weight, part_tiles, ready, tile, first_out)
    wait_for_previous(IS_DEPENDENT)
    for tile in gl.static_range(NUM_FIRST):
        _copy_rows(x, x_tiles, ready, tile, first_row, STAGES)

    sources = (x, weight)
    buffers = (x_tiles, part_tiles, weight_tiles, ready)
    sums = gl.zeros([64, BLOCK_OUT], gl.float32, SUMS)
    sums = _sums(sources, buffers, sums, first_row, first_out, NUM_TILES)

    result = sums.to(output.dtype.element_ty)
    if IS_GATED:
        gate, up = _gates_and_ups(result)
        # A thread has as many neighbours of each as it had of both.
        result = gl.convert_layout(let_through(gate, up), RESULTS, assert_trivial=True)
    column = gl.expand_dims(first_out + gl.arange(0, BLOCK_OUT // NUM_PARTS, gl.SliceLayout(0, RESULTS)), 0)
    row = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(1, RESULTS)), 1)
    is_there = (row < ROWS) & (first_row + row < num_rows) & (column < num_out)
    places = (first_row + row).to(gl.int64) * num_out + column
    if HAS_GATED_INPUT:
        given = gl.load(gated + (first_row + row).to(gl.int64) * gated_stride + column, mask=is_there, other=0.0)
        result = let_through(result, given)
    gl.store(output + places, result, mask=is_there)


@gluon.jit
def _gates_and_ups(values):
    """[rows, outputs] -> two of [rows, half of them]."""
    return gl.split(gl.permute(gl.reshape(values, [values.shape[0], 2, values.shape[1] // 2]), (0, 2, 1)))
