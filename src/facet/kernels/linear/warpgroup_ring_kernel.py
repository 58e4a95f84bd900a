"""Products of few rows in one chain of sums (`chain.py`) by the products of Hopper's warpgroups, in Gluon.

A product of one warp waits for the one before it, of whose chain there are hundreds: down of E4B has 640, which take
two thirds of its time in `ring_kernel.py`. Products of a warpgroup (`wgmma`) follow each other more closely:

    left    64, 128 or 256 outputs of the weight, of which those that a program owns are there (`units.py`)
    right   8, 16, 32 or 64 rows of x

With x on the left, of which 64 rows would be read at every product, down takes 16.3 µs and not 13.6.

Both operands come through a ring of tiles that a single thread asks for (TMA). The products of a tile are started all
at once, behind those of the tile before, and while they run the next tile is waited for. A tile's place is taken again
when its own are done and those behind it have been started.

The weight's first tiles are on their way before the kernel waits for the one before it. Eight gates and eight ups take
turns, so that a thread has the sums of both.
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
from facet.kernels.linear.units import UNIT_INPUTS, UNIT_ROWS, allocate_units, num_read, rows_to_read, units_to_copy


@gluon.jit
def _expect(buffers, tile, NUM_OUT: gl.constexpr, STAGES: gl.constexpr):
    """A tile of the weight and one of x, which may be asked for later."""
    x_tiles, _, ready = buffers
    mbarrier.expect(ready.index(tile % STAGES), (NUM_OUT + x_tiles.shape[1]) * x_tiles.shape[2] * 2)


@gluon.jit
def _first_unit(buffers, tile, NUM_OUT: gl.constexpr, STAGES: gl.constexpr):
    return tile % STAGES * (NUM_OUT // UNIT_ROWS * (buffers[0].shape[2] // UNIT_INPUTS))


@gluon.jit
def _copy_weights(weights, buffers, tile, group, NUM_OUT: gl.constexpr, STAGES: gl.constexpr):
    _, units, ready = buffers
    first = _first_unit(buffers, tile, NUM_OUT, STAGES)
    for index in gl.static_range(len(weights)):
        part = weights[index]
        where = [group, 0, tile * part.block_shape[2], 0, 0]
        copy_tile(part, where, ready.index(tile % STAGES), units_to_copy(units, first, part))
        group += part.block_shape[0]
        first += part.block_shape[0] * part.block_shape[1] * part.block_shape[2]


@gluon.jit
def _copy_rows(x, buffers, tile, first_row, STAGES: gl.constexpr):
    x_tiles, _, ready = buffers
    slot = tile % STAGES
    copy_tile(x, [first_row, tile * x_tiles.shape[2]], ready.index(slot), x_tiles.index(slot))


@gluon.jit
def _start(sums, buffers, tile, NUM_OUT: gl.constexpr, STAGES: gl.constexpr):
    """The products of a tile, behind those under way."""
    x_tiles, units, ready = buffers
    slot = tile % STAGES
    mbarrier.wait(ready.index(slot), tile // STAGES & 1)
    weights = rows_to_read(units, _first_unit(buffers, tile, NUM_OUT, STAGES), NUM_OUT, x_tiles.shape[2])
    return warpgroup_mma(weights, x_tiles.index(slot).permute((1, 0)), sums, is_async=True)


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["num_rows"])
def warpgroup_ring_kernel(
    x,  # tiles of it
    weight,  # tiles of [eights of outputs, 1, 64s of inputs, 8, 64], or of gates and ups, with 2 in place of 1
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
    NUM_PARTS: gl.constexpr = weight.block_shape[1]
    NUM_GROUPS: gl.constexpr = weight.block_shape[0] + (0 if more_weight is None else more_weight.block_shape[0])
    NUM_OUT: gl.constexpr = NUM_PARTS * NUM_GROUPS * UNIT_ROWS
    NUM_TILES: gl.constexpr = (NUM_IN + BLOCK_IN - 1) // BLOCK_IN
    NUM_FIRST: gl.constexpr = STAGES if STAGES < NUM_TILES else NUM_TILES

    # Programs that share a tile of the weight run side by side: one reads it from memory, the others from the cache.
    num_row_groups = gl.cdiv(num_rows, ROWS)
    first_row = gl.program_id(0) % num_row_groups * ROWS
    group = gl.program_id(0) // num_row_groups * NUM_GROUPS

    units = allocate_units(x.dtype, STAGES, NUM_OUT, BLOCK_IN)
    x_tiles = gl.allocate_shared_memory(x.dtype, [STAGES, ROWS, BLOCK_IN], x.layout)
    ready = barriers(STAGES, 1)
    buffers = (x_tiles, units, ready)
    weights = (weight,) if more_weight is None else (weight, more_weight)
    for tile in gl.static_range(NUM_FIRST):
        _expect(buffers, tile, NUM_OUT, STAGES)
        _copy_weights(weights, buffers, tile, group, NUM_OUT, STAGES)
    wait_for_previous(IS_DEPENDENT)
    for tile in gl.static_range(NUM_FIRST):
        _copy_rows(x, buffers, tile, first_row, STAGES)

    RESULTS: gl.constexpr = _layout_of_results(num_read(NUM_OUT) // NUM_PARTS, ROWS)
    own_out = gl.expand_dims(gl.arange(0, num_read(NUM_OUT) // NUM_PARTS, gl.SliceLayout(1, RESULTS)), 1)
    row = first_row + gl.expand_dims(gl.arange(0, ROWS, gl.SliceLayout(0, RESULTS)), 0)
    out = group * UNIT_ROWS + own_out
    is_there = (own_out < NUM_GROUPS * UNIT_ROWS) & (out < num_out) & (row < num_rows)
    if HAS_GATED_INPUT:
        up = gl.load(gated + row.to(gl.int64) * gated_stride + out, mask=is_there, other=0.0)

    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sums = gl.zeros([num_read(NUM_OUT), ROWS], gl.float32, SUMS)
    sums = warpgroup_mma_wait(1, deps=(_start(sums, buffers, 0, NUM_OUT, STAGES),))
    for tile in range(1, NUM_TILES):
        sums = warpgroup_mma_wait(1, deps=(_start(sums, buffers, tile, NUM_OUT, STAGES),))
        # The place of the tile before, whose products are done.
        next_tile = tile - 1 + STAGES
        if next_tile < NUM_TILES:
            _expect(buffers, next_tile, NUM_OUT, STAGES)
            thread_barrier()  # now they are in all warps
            _copy_weights(weights, buffers, next_tile, group, NUM_OUT, STAGES)
            _copy_rows(x, buffers, next_tile, first_row, STAGES)
    sums = warpgroup_mma_wait(0, deps=(sums,))

    if NUM_PARTS == 2:
        gate, up = _gates_and_ups(sums)
        gate = gl.convert_layout(gate, RESULTS).to(output.dtype.element_ty)
        result = let_through(gate, gl.convert_layout(up, RESULTS).to(output.dtype.element_ty))
    else:
        result = gl.convert_layout(sums, RESULTS).to(output.dtype.element_ty)
    if HAS_GATED_INPUT:
        result = let_through(result, up)
    gl.store(output + row.to(gl.int64) * num_out + out, result, mask=is_there)


@gluon.constexpr_function
def _layout_of_results(num_out, num_rows):
    """Of [outputs, rows]: neighbours among the outputs are stored together."""
    rows_at_once = 4 if num_rows >= 16 else 2
    outputs = min(8, num_out // (32 // rows_at_once))
    return gl.BlockedLayout([outputs, 1], [32 // rows_at_once, rows_at_once], [1, 4], [0, 1])


@gluon.jit
def _gates_and_ups(values):
    """[outputs, rows], of which eight gates and eight ups take turns -> two of [half of the outputs, rows]."""
    NUM_OUT: gl.constexpr = values.shape[0] // 2
    ROWS: gl.constexpr = values.shape[1]
    apart = gl.permute(gl.reshape(values, [NUM_OUT // 8, 2, 8, ROWS]), (0, 2, 3, 1))
    gate, up = gl.split(apart)
    return gl.reshape(gate, [NUM_OUT, ROWS]), gl.reshape(up, [NUM_OUT, ROWS])
