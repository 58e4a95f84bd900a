"""Products of few rows in one chain of sums (`chain.py`) by the products of Hopper's warpgroups, in Gluon.

A product of one warp waits for the one before it, of whose chain there are hundreds: down of E4B has 640, which take
two thirds of its time in `ring_kernel.py`. Products of a warpgroup (`wgmma`) follow each other more closely. They have
64 rows, though, so x is the left operand here, and the weight, whose outputs would not be enough for all
multiprocessors 64 at a time, is the right one:

    left    64 rows of x, of which 8, 16, 32 or all are there
    right   8 to 256 outputs: a power of two, or the sum of two, which are two products then

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
def _room_for(weight, STAGES: gl.constexpr):
    """(Tiles of [gates and ups, outputs of each, inputs], as they are copied; [outputs, inputs], as they are read;
    sums), of each one."""
    NUM_PARTS: gl.constexpr = weight.block_shape[0]
    OUT: gl.constexpr = weight.block_shape[1]
    BLOCK_IN: gl.constexpr = weight.block_shape[2]
    copied = gl.allocate_shared_memory(weight.dtype, [STAGES, NUM_PARTS, OUT, BLOCK_IN], weight.layout)
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([NUM_PARTS * OUT, BLOCK_IN], weight.dtype)
    read = copied._reinterpret(weight.dtype, [STAGES, NUM_PARTS * OUT, BLOCK_IN], layout)
    return (copied,), (read,), (gl.zeros([64, NUM_PARTS * OUT], gl.float32, _layout_of(NUM_PARTS * OUT)),)


@gluon.jit
def _expect(buffers, tile, NUM_OUT: gl.constexpr):
    """A tile of the weight and one of x, which may be asked for later."""
    x_tiles, copied, _, ready = buffers
    NUM_NUMBERS: gl.constexpr = (NUM_OUT + x_tiles.shape[1]) * x_tiles.shape[2]
    mbarrier.expect(ready.index(tile % copied[0].shape[0]), NUM_NUMBERS * 2)


@gluon.jit
def _copy_weights(weights, buffers, tile, firsts):
    _, copied, _, ready = buffers
    slot = tile % copied[0].shape[0]
    for part in gl.static_range(len(weights)):
        first = [0, firsts[part], tile * copied[part].shape[3]]
        copy_tile(weights[part], first, ready.index(slot), copied[part].index(slot))


@gluon.jit
def _copy_rows(x, buffers, tile, first_row):
    x_tiles, copied, _, ready = buffers
    slot = tile % copied[0].shape[0]
    copy_tile(x, [first_row, tile * x_tiles.shape[2]], ready.index(slot), x_tiles.index(slot))


@gluon.jit
def _refill(sources, buffers, tile, first_row, firsts, NUM_OUT: gl.constexpr, NUM_TILES: gl.constexpr):
    """The place of the tile before, whose products are done."""
    x, weights = sources
    next_tile = tile - 1 + buffers[1][0].shape[0]
    if next_tile < NUM_TILES:
        _expect(buffers, next_tile, NUM_OUT)
        thread_barrier()  # now they are in all warps
        _copy_weights(weights, buffers, next_tile, firsts)
        _copy_rows(x, buffers, next_tile, first_row)


@gluon.jit
def _start(sums, buffers, tile):
    """The products of a tile, behind those under way."""
    x_tiles, _, read, ready = buffers
    STAGES: gl.constexpr = read[0].shape[0]
    BLOCK_IN: gl.constexpr = x_tiles.shape[2]
    slot = tile % STAGES
    mbarrier.wait(ready.index(slot), tile // STAGES & 1)
    for start in gl.static_range(0, BLOCK_IN, WIDTH):
        rows = x_tiles.index(slot).slice(start, WIDTH, dim=1)._reinterpret(x_tiles.dtype, [64, WIDTH], ALL_ROWS)
        started = _times(rows, read[0], slot, start, sums[0])
        if len(read) == 2:
            started = started + _times(rows, read[1], slot, start, sums[1])
        sums = started
    return sums


@gluon.jit
def _times(rows, tiles, slot, start, sums):
    weights = tiles.index(slot).slice(start, WIDTH, dim=1)
    return (warpgroup_mma(rows, weights.permute((1, 0)), sums, is_async=True),)


@gluon.jit
def _wait(sums, num_under_way: gl.constexpr):
    if len(sums) == 1:
        return (warpgroup_mma_wait(num_under_way, deps=sums),)
    else:
        return warpgroup_mma_wait(num_under_way, deps=sums)


@gluon.jit
def _sums(sources, buffers, sums, first_row, firsts, NUM_OUT: gl.constexpr, NUM_TILES: gl.constexpr):
    NUM_STARTED: gl.constexpr = buffers[0].shape[2] // WIDTH * len(sums)  # of a tile
    sums = _wait(_start(sums, buffers, 0), NUM_STARTED)
    for tile in range(1, NUM_TILES):
        sums = _wait(_start(sums, buffers, tile), NUM_STARTED)
        _refill(sources, buffers, tile, first_row, firsts, NUM_OUT, NUM_TILES)
    return _wait(sums, 0)


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["num_rows"])
def warpgroup_ring_kernel(
    x,  # tiles of it
    weight,  # tiles of [1 or 2, outputs, inputs]: gates and ups apart
    more_weight,  # likewise, of a program's outputs behind those; or None
    gated,
    output,
    gated_stride,
    num_rows,
    num_out,
    NUM_IN: gl.constexpr,
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    STAGES: gl.constexpr,
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    ROWS: gl.constexpr = x.block_shape[0]  # of a program: 8, 16, 32 or 64
    BLOCK_IN: gl.constexpr = x.block_shape[1]
    NUM_PARTS: gl.constexpr = weight.block_shape[0]
    OUT: gl.constexpr = weight.block_shape[1]
    MORE_OUT: gl.constexpr = 0 if more_weight is None else more_weight.block_shape[1]
    NUM_OUT: gl.constexpr = NUM_PARTS * (OUT + MORE_OUT)
    NUM_TILES: gl.constexpr = (NUM_IN + BLOCK_IN - 1) // BLOCK_IN
    NUM_FIRST: gl.constexpr = STAGES if STAGES < NUM_TILES else NUM_TILES

    # Programs that share a tile of the weight run side by side: one reads it from memory, the others from the cache.
    num_row_groups = gl.cdiv(num_rows, ROWS)
    first_row = gl.program_id(0) % num_row_groups * ROWS
    first_out = gl.program_id(0) // num_row_groups * (OUT + MORE_OUT)

    # So many more as there is room for the rows that are read behind those of the last.
    NUM_BEHIND: gl.constexpr = ((64 - ROWS) * WIDTH + ROWS * BLOCK_IN - 1) // (ROWS * BLOCK_IN)
    copied, read, sums = _room_for(weight, STAGES)
    weights = (weight,) if more_weight is None else (weight, more_weight)
    firsts = (first_out,) if more_weight is None else (first_out, first_out + OUT)
    if more_weight is not None:
        more_copied, more_read, more_sums = _room_for(more_weight, STAGES)
        copied, read, sums = copied + more_copied, read + more_read, sums + more_sums
    x_tiles = gl.allocate_shared_memory(x.dtype, [STAGES + NUM_BEHIND, ROWS, BLOCK_IN], x.layout)
    ready = barriers(STAGES, 1)
    buffers = (x_tiles, copied, read, ready)
    for tile in gl.static_range(NUM_FIRST):
        _expect(buffers, tile, NUM_OUT)
        _copy_weights(weights, buffers, tile, firsts)
    wait_for_previous(IS_DEPENDENT)
    for tile in gl.static_range(NUM_FIRST):
        _copy_rows(x, buffers, tile, first_row)

    sums = _sums((x, weights), buffers, sums, first_row, firsts, NUM_OUT, NUM_TILES)

    given = (gated, gated_stride) if HAS_GATED_INPUT else None
    for part in gl.static_range(len(sums)):
        _store(sums[part], output, given, first_row, firsts[part], num_rows, num_out, ROWS, NUM_PARTS == 2)


@gluon.jit
def _store(
    sums, output, given, first_row, first_out, num_rows, num_out, ROWS: gl.constexpr, IS_GATED: gl.constexpr
):  # fmt: skip
    OUT: gl.constexpr = sums.shape[1] // 2 if IS_GATED else sums.shape[1]
    RESULTS: gl.constexpr = _layout_of(OUT)
    result = sums.to(output.dtype.element_ty)
    if IS_GATED:
        gate, up = _gates_and_ups(result)
        # A thread has as many neighbours of each as it had of both.
        result = gl.convert_layout(let_through(gate, up), RESULTS, assert_trivial=True)
    column = gl.expand_dims(first_out + gl.arange(0, OUT, gl.SliceLayout(0, RESULTS)), 0)
    row = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(1, RESULTS)), 1)
    is_there = (row < ROWS) & (first_row + row < num_rows) & (column < num_out)
    places = (first_row + row).to(gl.int64) * num_out + column
    if given is not None:
        gated, stride = given
        up = gl.load(gated + (first_row + row).to(gl.int64) * stride + column, mask=is_there, other=0.0)
        result = let_through(result, up)
    gl.store(output + places, result, mask=is_there)


@gluon.constexpr_function
def _layout_of(num_out):
    """Of a warpgroup's sums."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, num_out, 16])


@gluon.jit
def _gates_and_ups(values):
    """[rows, outputs] -> two of [rows, half of them]."""
    return gl.split(gl.permute(gl.reshape(values, [values.shape[0], 2, values.shape[1] // 2]), (0, 2, 1)))
