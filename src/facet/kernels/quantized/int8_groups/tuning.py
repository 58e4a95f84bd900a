"""How products of few rows and of tens of rows with shuffled 8-bit codes are cut into programs and warps.

A block has as many bytes as one of 4-bit codes, and so what keeps memory busy is the same (`int4/tuning.py`).
"""

from dataclasses import replace

from facet.kernels.quantized.int4 import tuning as int4
from facet.kernels.quantized.int4.tuning import Ring, Tuning, rows_of_program
from facet.kernels.quantized.int8_groups.shuffled import BLOCK_IN, ShuffledInt8
from facet.kernels.quantized.shuffled.wide_tuning import WideKinds, WideTuning, divide_turns, is_wide

__all__ = [
    "MAX_FEW_ROWS",
    "MAX_FEW_ROWS_ELSEWHERE",
    "MAX_RING_ROWS",
    "MAX_WIDE_ROWS",
    "Ring",
    "Tuning",
    "choose_tuning",
    "choose_wide_tuning",
    "constants_of",
    "constants_of_ring",
    "constants_of_wide",
    "launch_of_ring",
    "most_rows_before_wide",
    "num_turns_of",
    "ring_of",
    "rows_of_program",
]

# Up to here codes come through rings on a Hopper GPU, or up to `most_rows_before_wide`. From there on the wide kernel
# takes less time, and from the last on, bringing a matrix to bfloat16 before it is multiplied; on other GPUs, which
# have no wide kernel, from the third.
MAX_RING_ROWS = 16
MAX_FEW_ROWS, MAX_WIDE_ROWS = MAX_RING_ROWS, 256
MAX_FEW_ROWS_ELSEWHERE = 64
# Of a program that multiplies two tiles with a warp. With more, registers of some formats would leave no room for as
# many warps as memory needs (tests/kernels/test_compiled_for_hopper.py).
_MOST_ROWS_OF_TWO_TILES = 16
_NUM_MULTIPROCESSORS = 132  # of an H200
_MOST_WARPS = 32  # of a multiprocessor, that have 64 registers a thread


def choose_tuning(num_tiles: int, num_blocks: int, num_rows: int) -> Tuning:
    """How a row's sums are cut follows from the matrix alone."""
    tuning = int4.choose_tuning(num_tiles, num_blocks, num_rows)
    return tuning if rows_of_program(num_rows) <= _MOST_ROWS_OF_TWO_TILES else replace(tuning, tiles=1)


def ring_of(num_tiles: int, num_blocks: int, num_levels: int, num_rows: int) -> Ring:
    """Sums are cut as `choose_tuning` cuts them, so bits are the same.

    Up to 8 rows: a block has half as many inputs as one of 4-bit codes, so there are registers to load those of the
    next turn ahead, but for what minimums take. Of more rows, warps of two tiles have four: half as many programs have
    the same turns in shared memory, and read x half as often.

    Programs seem to be spread unevenly where a multiprocessor has room for more of them than it needs to hold. So there
    are more stages if four programs would fit and three are needed. Microseconds on an H200, 1 row of Q8_0 with 4, 6,
    7, 8 and 9 stages: 31B down 39.7, 39.1, 31.8, 32.3, 39.3 (two fit); o 16.4, 17.0, 14.1, 14.0, 17.2. With minimums,
    whose registers leave no room for a fourth: 31.3, 32.3, 32.8, 32.7, 44.5.
    """
    ring = int4.ring_of(num_tiles, num_blocks)
    if num_rows <= 8:
        ring = replace(ring, is_ahead=ring.is_ahead or num_levels < 2)
        return ring if num_levels == 2 else _spread_evenly(ring, num_tiles, num_blocks)
    return replace(ring, tiles=4 if ring.tiles == 2 else 1, is_ahead=False, row_tiles=2)


def _spread_evenly(ring: Ring, num_tiles: int, num_blocks: int) -> Ring:
    """The ring with as many stages as leave no room for more programs than are needed, if their registers leave it.
    Otherwise, and where there cannot be so many stages, the ring as it is."""
    needed = -(-num_tiles // (ring.tiles * ring.num_out_warps * _NUM_MULTIPROCESSORS))
    num_stages = int4.most_stages(ring, needed + 1) + 1
    has_registers = (needed + 1) * ring.num_warps <= _MOST_WARPS
    can_be = num_stages <= min(int4.most_stages(ring, needed), -(-num_blocks // ring.num_in_warps))
    return replace(ring, num_stages=max(ring.num_stages, num_stages)) if has_registers and can_be else ring


def most_rows_before_wide(num_tiles: int, num_blocks: int) -> int:
    """The most rows that go through rings on a Hopper GPU, before the wide kernel serves. 16 rows of 31B's gate_up take
    65.5 us in a ring and 69.7 in the wide kernel with Q8_0, 77.8 and 74.7 with Q5_K; of down, where many warps divide
    inputs, 55.5 and 42.6 with Q6_K."""
    return int4.most_ring_rows(num_tiles, num_blocks)


def constants_of(matrix: ShuffledInt8, tuning: Tuning, rows: int) -> dict[str, int]:
    """The constants of kernels, for programs of so many rows."""
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
        **_constants_of_format(matrix),
        "TILES": cut.tiles,
        "NUM_OUT_WARPS": cut.num_out_warps,
        "NUM_IN_WARPS": cut.num_in_warps,
        "num_warps": cut.num_out_warps * cut.num_in_warps,
    }


def _constants_of_format(matrix: ShuffledInt8) -> dict[str, int]:
    return {
        "GROUPS": matrix.num_words,
        "BLOCKS_OF_SCALE": matrix.blocks_of_scale,
        "LEVELS": matrix.num_levels,
        "IS_NARROW": matrix.is_narrow,
    }


def num_turns_of(num_blocks: int) -> int:
    """The turns that the wide kernel takes for all inputs of a tile: it has two blocks in a turn."""
    return -(-num_blocks // 2)


# Kinds of the wide kernel, for matrices of many outputs, of some and of few.
_WIDE: WideKinds = {16: (8, 2, 4, 128), 32: (8, 2, 4, 128), 64: (16, 1, 4, 128), 128: (16, 1, 3, 128)}
_MIDDLE: WideKinds = {16: (4, 4, 4, 128), 32: (8, 2, 4, 128), 64: (4, 2, 4, 128)}
_NARROW: WideKinds = {16: (4, 4, 4, 128), 32: (4, 3, 4, 128), 64: (4, 2, 4, 128)}


def choose_wide_tuning(
    num_tiles: int, num_blocks: int, num_rows: int, num_multiprocessors: int = _NUM_MULTIPROCESSORS
) -> WideTuning:
    """Rows of x are read once for a program, from the second-level cache: the more of its tiles, the fewer bytes. With
    31B gate_up and 64 rows these are 115 MB beside 250 of codes, in programs of 8 tiles 231. Programs of fewer tiles
    spread better: 64 rows of down in Q6_K take 57.0 us in 4 tiles and 63.9 in 16, 16 rows 41.3 in 4 and 42.6 in 8.
    """
    kinds = _NARROW if num_tiles < 2 * num_multiprocessors else _MIDDLE
    kinds = _WIDE if is_wide(num_tiles, num_multiprocessors) else kinds
    return divide_turns(kinds, num_tiles, num_blocks * BLOCK_IN, num_rows, num_multiprocessors)


def constants_of_wide(matrix: ShuffledInt8, tuning: WideTuning) -> dict[str, int]:
    return {**_constants_of_format(matrix), **tuning.constants()}
