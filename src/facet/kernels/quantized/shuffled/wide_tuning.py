"""How products of tens of rows with shuffled codes are cut into programs, whatever the width of the codes."""

from collections.abc import Mapping
from dataclasses import dataclass

# Tiles of a program, programs of a multiprocessor, stages, and inputs of a turn, by rows of a program.
WideKinds = Mapping[int, tuple[int, int, int, int]]
_REGISTERS, _WARPS = 65_536, 16  # of a multiprocessor
# Inputs of its tile group that a program has: the fewest only if most multiprocessors would have no program.
_FEW_INPUTS, _FEWEST_INPUTS, _MOST_SHARES = 1024, 512, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WideTuning:
    rows: int  # of a program
    tiles: int  # of 16 outputs, and warps
    programs: int  # that divide all turns of a group of rows
    stages: int  # turns in shared memory
    turn_in: int = 128  # inputs of a turn; of 4-bit codes there may be 256

    def constants(self) -> dict[str, int]:
        """The constants of kernels. Registers leave room for 16 warps."""
        return {
            "ROWS": self.rows,
            "TILES": self.tiles,
            "STAGES": self.stages,
            "num_warps": self.tiles,
            "maxnreg": _REGISTERS // (32 * _WARPS),
        }


def is_wide(num_tiles: int, num_multiprocessors: int) -> bool:
    """Whether there are 16 tiles for each multiprocessor."""
    return num_tiles >= 16 * num_multiprocessors


def divide_turns(
    kinds: WideKinds, num_tiles: int, num_inputs: int, num_rows: int, num_multiprocessors: int
) -> WideTuning:
    """All programs run at a time, because each has as many turns as the others."""
    rows = next((kind for kind in kinds if num_rows <= kind), max(kinds))
    tiles, programs, stages, turn_in = kinds[rows]
    num_row_groups, num_groups = -(-num_rows // rows), -(-num_tiles // tiles)
    most_shares = num_inputs // _FEW_INPUTS
    if num_groups * most_shares < num_multiprocessors // 2:
        most_shares = num_inputs // _FEWEST_INPUTS
    most_shares = max(1, min(_MOST_SHARES, most_shares))
    programs = min(programs * num_multiprocessors // num_row_groups, num_groups * most_shares)
    # Where none has to be idle for it, programs share one tile group each, not the ends of two.
    even = programs // num_groups * num_groups
    if even >= 0.9 * programs or even * num_row_groups >= 2 * num_multiprocessors:
        programs = even
    return WideTuning(rows=rows, tiles=tiles, programs=programs, stages=stages, turn_in=turn_in)
