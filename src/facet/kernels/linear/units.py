"""Rows of a weight in shared memory, in units of eight rows of 64 inputs, which are 1 KB.

Eight rows lie behind eight rows, each with all units of their inputs. So rows can be copied in parts, one behind the
other, whose numbers are powers of two as Triton demands, and be read by one product of tensor cores. Products read 64,
128 or 256 rows. Those beyond the ones that are there are whatever lies behind; nobody reads their sums.
"""

from facet.kernels.gluon_names import gl, gluon
from facet.kernels.linear import ring_config

UNIT_ROWS, UNIT_INPUTS = gl.constexpr(8), gl.constexpr(64)

num_read = gluon.constexpr_function(ring_config.num_read)


@gluon.jit
def allocate_units(dtype: gl.constexpr, NUM_TILES: gl.constexpr, NUM_ROWS: gl.constexpr, BLOCK_IN: gl.constexpr):
    """Shared memory for so many tiles, and for what products read behind the last."""
    NUM_UNITS: gl.constexpr = ((NUM_TILES - 1) * NUM_ROWS + num_read(NUM_ROWS)) // UNIT_ROWS * (BLOCK_IN // UNIT_INPUTS)
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([UNIT_ROWS, UNIT_INPUTS], dtype)
    return gl.allocate_shared_memory(dtype, [NUM_UNITS, UNIT_ROWS, UNIT_INPUTS], LAYOUT)


@gluon.jit
def units_to_copy(units, first, part):
    """The units that a copy of one tile of the descriptor `part` fills."""
    return units.index(first)._reinterpret(units.dtype, part.block_shape, part.layout)


@gluon.jit
def rows_to_read(units, first, NUM_ROWS: gl.constexpr, BLOCK_IN: gl.constexpr):
    """The rows that a product reads, [rows, inputs], of which `NUM_ROWS` are there."""
    LAYOUT: gl.constexpr = _rows_of_units(num_read(NUM_ROWS), BLOCK_IN)
    return units.index(first)._reinterpret(units.dtype, [num_read(NUM_ROWS), BLOCK_IN], LAYOUT)


@gluon.jit
def first_row_of_units(units, first, NUM_UNITS: gl.constexpr):
    """The first rows of units, [units, 1, inputs], to be written. A unit's first row is not swizzled."""
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 1, order=[2, 1, 0])
    shape: gl.constexpr = [NUM_UNITS, UNIT_ROWS, UNIT_INPUTS]
    return units.index(first)._reinterpret(units.dtype, shape, PLAIN).slice(0, 1, dim=1)


@gluon.jit
def row_to_read(units, tile, BLOCK_IN: gl.constexpr):
    """[rows, inputs] of a tile, of which one is there: the first row of units that follow each other."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([UNIT_ROWS, BLOCK_IN], units.dtype)
    return units.index(tile * (BLOCK_IN // UNIT_INPUTS))._reinterpret(units.dtype, [UNIT_ROWS, BLOCK_IN], LAYOUT)


@gluon.constexpr_function
def _rows_of_units(num_rows, num_in):
    """The [row, input] that each bit of a place in memory leads to: inside a unit, whose rows are swizzled, to other
    inputs of the rows, and to other rows."""
    unit = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32]]
    inputs = [[0, 64 << bit] for bit in range((num_in // 64).bit_length() - 1)]
    rows = [[8 << bit, 0] for bit in range((num_rows // 8).bit_length() - 1)]
    return gl.SharedLinearLayout(unit + inputs + rows, [], 1024)
