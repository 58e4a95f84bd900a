"""How few-row products with shuffled 8-bit codes are cut into programs and warps.

A block has as many bytes as one of 4-bit codes, and so what keeps memory busy is the same (`int4/tuning.py`).
"""

from dataclasses import replace

from facet.kernels.quantized.int4 import tuning as int4
from facet.kernels.quantized.int4.tuning import Ring, Tuning, rows_of_program
from facet.kernels.quantized.int8_groups.shuffled import BLOCK_IN, ShuffledInt8

__all__ = [
    "MAX_FEW_ROWS",
    "MAX_RING_ROWS",
    "Ring",
    "Tuning",
    "choose_tuning",
    "constants_of",
    "constants_of_ring",
    "launch_of_ring",
    "ring_of",
    "rows_of_program",
]

# From here on, bringing a matrix to bfloat16 before it is multiplied takes less time.
MAX_FEW_ROWS = 64
# Up to here codes come through rings on a Hopper GPU.
MAX_RING_ROWS = 16
# Of a program that multiplies two tiles with a warp. With more, registers of some formats would leave no room for as
# many warps as memory needs (tests/kernels/test_compiled_for_hopper.py).
_MOST_ROWS_OF_TWO_TILES = 16


def choose_tuning(num_tiles: int, num_blocks: int, num_rows: int) -> Tuning:
    """How a row's sums are cut follows from the matrix alone."""
    tuning = int4.choose_tuning(num_tiles, num_blocks, num_rows)
    return tuning if rows_of_program(num_rows) <= _MOST_ROWS_OF_TWO_TILES else replace(tuning, tiles=1)


def ring_of(num_tiles: int, num_blocks: int, num_levels: int, num_rows: int) -> Ring:
    """Sums are cut as `choose_tuning` cuts them, so bits are the same.

    Up to 8 rows: a block has half as many inputs as one of 4-bit codes, so there are registers to load those of the
    next turn ahead, but for what minimums take. Of more rows, warps of two tiles have four: half as many programs have
    the same turns in shared memory, and read x half as often.
    """
    ring = int4.ring_of(num_tiles, num_blocks)
    if num_rows <= 8:
        return replace(ring, is_ahead=ring.is_ahead or num_levels < 2)
    return replace(ring, tiles=4 if ring.tiles == 2 else 1, is_ahead=False, row_tiles=2)


def constants_of(matrix: ShuffledInt8, tuning: Tuning, rows: int) -> dict[str, int]:
    """How kernels are told, for programs of so many rows."""
    return {
        **_constants(matrix, tuning),
        "ROW_TILES": rows // 8,
        "IS_RAGGED": matrix.num_blocks % (2 * tuning.num_in_warps) != 0,
        "HAS_TAIL": matrix.num_inputs % BLOCK_IN != 0,
    }


def constants_of_ring(matrix: ShuffledInt8, ring: Ring) -> dict[str, int]:
    return {
        **_constants(matrix, ring),
        "ROW_TILES": ring.row_tiles,
        "STAGES": ring.num_stages,
        "IS_AHEAD": ring.is_ahead,
        "HAS_TAIL": matrix.num_inputs % (BLOCK_IN * ring.num_in_warps) != 0,
        **launch_of_ring(ring),
    }


def launch_of_ring(ring: Ring) -> dict[str, int]:
    """Two programs of 16 warps fit on a multiprocessor, whatever has to leave registers for it: there may be a few more
    of them than multiprocessors, as with the down of E4B."""
    return {"maxnreg": 64} if ring.num_warps == 16 else {}


def _constants(matrix: ShuffledInt8, cut: Tuning | Ring) -> dict[str, int]:
    return {
        "GROUPS": matrix.num_words,
        "BLOCKS_OF_SCALE": matrix.blocks_of_scale,
        "LEVELS": matrix.num_levels,
        "IS_NARROW": matrix.is_narrow,
        "TILES": cut.tiles,
        "NUM_OUT_WARPS": cut.num_out_warps,
        "NUM_IN_WARPS": cut.num_in_warps,
        "num_warps": cut.num_out_warps * cut.num_in_warps,
    }
