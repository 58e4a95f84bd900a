"""Sums of products of Hopper's warpgroups, whose tiles come through a ring in shared memory, in Gluon.

    left    64, 128 or 256 outputs of the weight, of which those that a program owns are there (`units.py`)
    right   8, 16, 32 or 64 rows of x; or one row that lies in shared memory already, and what are no rows

Both come in tiles that a single thread asks for (TMA). The products of a tile are started all at once, behind those of
the tile before, and while they run the next tile is waited for. A tile's place is taken again when its own are done and
those behind it have been started. A sum is one chain over inputs, 16 at a time from first to last (`chain.py`).

Eight gates and eight ups take turns, so that a thread has the sums of both.
"""

from facet.kernels.gluon_parts import barriers
from facet.kernels.linear.language import (
    copy_tile,
    gl,
    gluon,
    let_through,
    mbarrier,
    thread_barrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from facet.kernels.linear.units import (
    UNIT_INPUTS,
    UNIT_ROWS,
    allocate_units,
    num_read,
    row_to_read,
    rows_to_read,
    units_to_copy,
)


@gluon.constexpr_function
def num_groups(weights):
    """Eights of outputs that a program has, or of gates and of ups each."""
    return sum(part.block_shape[0] for part in weights)


@gluon.constexpr_function
def num_own_out(weights):
    """Outputs of a program, gates and ups together."""
    return 8 * sum(part.block_shape[0] * part.block_shape[1] for part in weights)


@gluon.constexpr_function
def block_inputs(weights):
    """How many inputs a tile has."""
    return 64 * weights[0].block_shape[2]


@gluon.constexpr_function
def rows_of_product(x):
    return 8 if x is None else x.block_shape[0]


@gluon.jit
def make_ring(x, weights, STAGES: gl.constexpr):
    """A ring for tiles of x and of the weight. Here and below, x has tiles of the rows. It is None where a row takes
    the place of theirs in the ring."""
    x_tiles = gl.allocate_shared_memory(x.dtype, [STAGES, x.block_shape[0], x.block_shape[1]], x.layout)
    return ring_beside(x_tiles, weights, STAGES)


@gluon.jit
def ring_beside(x_tiles, weights, STAGES: gl.constexpr):
    units = allocate_units(weights[0].dtype, STAGES, num_own_out(weights), block_inputs(weights))
    return x_tiles, units, barriers(STAGES, 1)


@gluon.jit
def _first_unit(weights, slot):
    return slot * (num_own_out(weights) // UNIT_ROWS * (block_inputs(weights) // UNIT_INPUTS))


@gluon.jit
def expect_tile(x, weights, ring, tile):
    """Announces the bytes of a tile of the weight and of x; their copies may be started later."""
    ready = ring[2]
    num_rows: gl.constexpr = num_own_out(weights) if x is None else num_own_out(weights) + rows_of_product(x)
    mbarrier.expect(ready.index(tile % ready.shape[0]), num_rows * block_inputs(weights) * 2)


@gluon.jit
def copy_weights(weights, ring, tile, group, matrix):
    """Starts the copy of a tile's outputs: those of the matrix from the eighth output times `group` on, or its gates
    and its ups from there on."""
    _, units, ready = ring
    slot = tile % ready.shape[0]
    first = _first_unit(weights, slot)
    for index in gl.static_range(len(weights)):
        part = weights[index]
        where = [group, matrix * part.block_shape[1], tile * part.block_shape[2], 0, 0]
        copy_tile(part, where, ready.index(slot), units_to_copy(units, first, part))
        group += part.block_shape[0]
        first += part.block_shape[0] * part.block_shape[1] * part.block_shape[2]


@gluon.jit
def copy_rows(x, ring, tile, first_row):
    x_tiles, _, ready = ring
    slot = tile % ready.shape[0]
    copy_tile(x, [first_row, tile * x.block_shape[1]], ready.index(slot), x_tiles.index(slot))


@gluon.jit
def _start(sums, x, weights, ring, tile):
    """Starts the products of a tile, behind those under way."""
    x_tiles, units, ready = ring
    slot = tile % ready.shape[0]
    mbarrier.wait(ready.index(slot), tile // ready.shape[0] & 1)
    left = rows_to_read(units, _first_unit(weights, slot), num_own_out(weights), block_inputs(weights))
    right = row_to_read(x_tiles, tile, block_inputs(weights)) if x is None else x_tiles.index(slot)
    return warpgroup_mma(left, right.permute((1, 0)), sums, is_async=True)


@gluon.jit
def sums_through_ring(x, weights, ring, first_row, group, matrix, NUM_TILES: gl.constexpr):
    """[outputs, rows] in float32, when as many tiles have been asked for as there are, or have room."""
    STAGES: gl.constexpr = ring[2].shape[0]
    ROWS: gl.constexpr = rows_of_product(x)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sums = gl.zeros([num_read(num_own_out(weights)), ROWS], gl.float32, SUMS)
    sums = warpgroup_mma_wait(1, deps=(_start(sums, x, weights, ring, 0),))
    for tile in range(1, NUM_TILES):
        sums = warpgroup_mma_wait(1, deps=(_start(sums, x, weights, ring, tile),))
        # The place of the tile before, whose products are done.
        next_tile = tile - 1 + STAGES
        if next_tile < NUM_TILES:
            expect_tile(x, weights, ring, next_tile)
            thread_barrier()  # now they are in all warps
            copy_weights(weights, ring, next_tile, group, matrix)
            if x is not None:
                copy_rows(x, ring, next_tile, first_row)
    return warpgroup_mma_wait(0, deps=(sums,))


@gluon.constexpr_function
def layout_of_results(weights, num_rows):
    """The layout of results, [outputs, rows]: neighbours among the outputs are stored together."""
    num_out = num_read(num_own_out(weights)) // weights[0].block_shape[1]
    rows_at_once = 4 if num_rows >= 16 else 2
    outputs = min(8, num_out // (32 // rows_at_once))
    return gl.BlockedLayout([outputs, 1], [32 // rows_at_once, rows_at_once], [1, 4], [0, 1])


@gluon.jit
def places_of_results(weights, group, first_row, num_out, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """The row and the output of each result, and whether there is such an output."""
    NUM_READ: gl.constexpr = num_read(num_own_out(weights)) // weights[0].block_shape[1]
    own_out = gl.expand_dims(gl.arange(0, NUM_READ, gl.SliceLayout(1, LAYOUT)), 1)
    row = first_row + gl.expand_dims(gl.arange(0, ROWS, gl.SliceLayout(0, LAYOUT)), 0)
    out = group * UNIT_ROWS + own_out
    return row, out, (own_out < num_groups(weights) * UNIT_ROWS) & (out < num_out)


@gluon.jit
def results_of(sums, weights, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """The sums, or what gates let through. They change places before they are rounded: assemblers that see them rounded
    right behind the last product make all products wait for each other."""
    if weights[0].block_shape[1] == 2:
        gate, up = _gates_and_ups(sums)
        gate = gl.convert_layout(gate, LAYOUT).to(dtype)
        result = let_through(gate, gl.convert_layout(up, LAYOUT).to(dtype))
    else:
        result = gl.convert_layout(sums, LAYOUT).to(dtype)
    return result


@gluon.jit
def _gates_and_ups(values):
    """[outputs, rows], of which eight gates and eight ups take turns -> two of [half of the outputs, rows]."""
    NUM_OUT: gl.constexpr = values.shape[0] // 2
    ROWS: gl.constexpr = values.shape[1]
    apart = gl.permute(gl.reshape(values, [NUM_OUT // 8, 2, 8, ROWS]), (0, 2, 3, 1))
    gate, up = gl.split(apart)
    return gl.reshape(gate, [NUM_OUT, ROWS]), gl.reshape(up, [NUM_OUT, ROWS])
