"""How few-row products with shuffled codes are cut into programs and warps.

Memory is kept busy by 16 to 20 warps on every multiprocessor of an H200, each with a block on its way while it
multiplies another. A matrix of few outputs has too few tiles for that: several warps then share one and divide its
inputs.
"""

from dataclasses import dataclass, replace

from facet.kernels.quantized.int4.shuffled import BLOCK_IN, ShuffledInt4, bytes_of_block
from facet.kernels.quantized.shuffled.wide_tuning import WideKinds, WideTuning, divide_turns, is_wide

# Rows of one program. What they cost comes in tiles of eight, so these are kinds of kernels.
ROW_KINDS = (8, 16, 32, 64)
# From here on the wide kernel is faster, and from there on bringing a matrix to bfloat16 before it is multiplied.
MAX_FEW_ROWS, MAX_WIDE_ROWS = 8, 256
# Rows of an expert, beyond which matrices of experts are brought to bfloat16 too.
MAX_FEW_ROWS_OF_EXPERT = 64
_NUM_MULTIPROCESSORS = 132
_WARPS = _NUM_MULTIPROCESSORS * 16
# Shared memory for all programs of a multiprocessor, and what each of them takes beside its own.
_SHARED_BYTES, _BYTES_OF_PROGRAM = 232_448, 1024
_BYTES_BESIDE_TURNS = 128  # that a ring of up to 8 rows takes
_REGISTERS = 65_536
_LEAST_STAGES, _MOST_STAGES = 2, 16
# Warps of a multiprocessor whose registers suffice, and registers of a warp that loads inputs ahead, by its tiles.
_RING_WARPS, _REGISTERS_AHEAD = 24, {1: 32 * 80, 2: 32 * 112}
# As the latter, where there are minimums.
_REGISTERS_OF_MINIMUMS = {1: 32 * 104, 2: 32 * 136, 4: 32 * 160}
# Of rings of 9 to 16 rows: registers of a warp without inputs ahead and with them, by its tiles; warps for whose sake
# programs have fewer tiles.
_REGISTERS_OF_16 = {1: (32 * 120, 32 * 144), 2: (32 * 120, 32 * 144), 4: (32 * 152, 32 * 176)}
_LEAST_WARPS_OF_16 = _NUM_MULTIPROCESSORS * 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    tiles: int  # of 16 outputs, for one warp
    num_out_warps: int
    num_in_warps: int  # the only one that changes the order of sums

    def constants(self, matrix: ShuffledInt4, rows: int) -> dict[str, int]:
        """The constants of kernels, for programs of so many rows."""
        return {
            "TILES": self.tiles,
            "ROW_TILES": rows // 8,
            "NUM_OUT_WARPS": self.num_out_warps,
            "NUM_IN_WARPS": self.num_in_warps,
            "IS_RAGGED": matrix.num_blocks % (2 * self.num_in_warps) != 0,
            "HAS_TAIL": matrix.num_inputs % BLOCK_IN != 0,
            "num_warps": self.num_out_warps * self.num_in_warps,
        }


def rows_of_program(num_rows: int) -> int:
    return next((kind for kind in ROW_KINDS if num_rows <= kind), ROW_KINDS[-1])


def choose_tuning(num_tiles: int, num_blocks: int, num_rows: int, *, has_minimums: bool = False) -> Tuning:
    """How a row's sums are cut follows from the matrix alone: its result does not depend on how many share the call.

    Microseconds on an H200, one row (benchmarks/int4_gpu.py --tune): 31B gate_up 44.5 in two tiles and 2 x 2 warps,
    49.9 in one and 4 x 1; qkv 21.5 and 28.0; down 25.4 in one tile and 1 x 8, 27.9 in two; o 10.6 and 16.4 in 2 x 4.
    """
    num_in_warps = 2 if num_blocks >= 4 else 1
    # Registers of minimums leave no room for 32 warps on a multiprocessor.
    most_in_warps = 8 if has_minimums else 16
    while (
        num_in_warps < most_in_warps
        and num_tiles * num_in_warps * 2 <= _WARPS * 3 // 2
        and num_in_warps * 4 <= num_blocks
    ):
        num_in_warps *= 2
    # Two tiles share what is loaded of x, as long as there are registers for their sums and tiles for all warps.
    most_rows = 16 if has_minimums else 32
    tiles = 2 if num_in_warps <= 2 and rows_of_program(num_rows) <= most_rows else 1
    return Tuning(tiles=tiles, num_out_warps=max(1, 4 // num_in_warps), num_in_warps=num_in_warps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Like `Tuning`, where codes and scales of a few turns lie in shared memory. A turn is one block for every warp, of
    each of its tiles."""

    tiles: int
    num_out_warps: int
    num_in_warps: int  # the only one that changes the order of sums
    num_stages: int  # turns; of more than 8 rows an even number
    is_ahead: bool  # inputs of a turn are loaded before the turn ahead of it is multiplied, not after
    row_tiles: int = 1  # of 8 rows, at most two
    has_minimums: bool = False  # beside scales, and coarse ones of both

    @property
    def num_warps(self) -> int:
        return self.num_out_warps * self.num_in_warps

    @property
    def num_bytes(self) -> int:
        """The bytes of shared memory, at most."""
        return self.num_stages * self.bytes_of_turn + _BYTES_BESIDE_TURNS

    @property
    def bytes_of_turn(self) -> int:
        return self.num_warps * self.tiles * bytes_of_block(has_minimums=self.has_minimums)

    def constants(self, matrix: ShuffledInt4) -> dict[str, int]:
        """The constants of the kernel."""
        return {
            "TILES": self.tiles,
            "NUM_OUT_WARPS": self.num_out_warps,
            "NUM_IN_WARPS": self.num_in_warps,
            "STAGES": self.num_stages,
            "IS_AHEAD": self.is_ahead,
            "HAS_TAIL": matrix.num_inputs % (BLOCK_IN * self.num_in_warps) != 0,
            "num_warps": self.num_warps,
        }


def ring_of(num_tiles: int, num_blocks: int, num_rows: int = 1, *, has_minimums: bool = False) -> Ring:
    """Sums are cut as `choose_tuning` cuts them, so bits are the same. All programs run at a time if they can.

    A ring of up to 8 rows holds half of a program's turns, or three, as far as there is shared memory: half of it where
    more than two warps divide inputs. Microseconds on an H200, 1 row and 8 rows (benchmarks/int4_gpu.py --rings), in
    rings as deep as memory allows for and half as deep:

        31B gate_up   4 stages  36.8, 37.8    2 stages  38.7, 39.9    21 turns, 2 warps divide inputs
        31B qkv      12         17.4, 19.5    6         18.6, 20.5    21        2
        31B down      8         21.2, 29.6    4         18.7, 21.1    21        8
        31B o         8         10.0, 11.3    4          8.2,  9.3     8        8
        E4B gate_up   9         11.3, 13.0    5          9.9, 10.9    10        2
        E4B down      6          8.0,  9.7    3          6.9,  9.5     5       16
        E4B qkv       5          3.4,  4.4    3          3.3,  4.3     3        8
        E4B o         4          3.1,  3.8    2          3.0,  3.4     2        8

    So 31B qkv has 11 stages, E4B o has 3, and the others have the better of their two.

    Inputs are loaded ahead where registers suffice: not in 31B gate_up and E4B down. The deeper rings, the other way
    round: 31B gate_up 41.9, 43.2; qkv 18.3, 21.2; down 21.3, 23.8; o 10.3, 11.3; E4B gate_up 11.6, 12.7; down 9.4,
    12.1; qkv 5.2, 6.1; o 3.7, 4.5. Of E4B's per-layer input, products take 1.4 to 2.6 in all of these rings.
    """
    num_in_warps = choose_tuning(num_tiles, num_blocks, 1, has_minimums=has_minimums).num_in_warps
    num_out_warps = max(1, 4 // num_in_warps)
    while num_out_warps > 1 and num_tiles < num_out_warps * _NUM_MULTIPROCESSORS:
        num_out_warps //= 2
    if num_rows > 8:
        assert not has_minimums, "rings of 16 rows have none"
        return _ring_of_16(num_tiles, num_blocks, num_out_warps, num_in_warps)
    num_warps = num_out_warps * num_in_warps
    most_programs = max(2, _RING_WARPS // num_warps)
    registers = _REGISTERS_OF_MINIMUMS if has_minimums else _REGISTERS_AHEAD
    if num_tiles > num_out_warps * most_programs * _NUM_MULTIPROCESSORS:
        tiles = 4 if has_minimums else 2
    else:
        # Sums of inputs, which minimums are multiplied by, are made once for all tiles of a warp. One row of Q4_K in
        # 31B's qkv takes 22.7 us with one tile, 18.6 with two and 19.9 with four; in down 24.8 and 30.9, in o 10.7 and
        # 12.7 (benchmarks/q4_k_gpu.py --rings).
        tiles = 2 if has_minimums and num_in_warps <= 2 else 1
    if has_minimums and tiles > 1:
        most_programs = max(1, _REGISTERS // (num_warps * registers[tiles]))
    num_programs = min(most_programs, -(-num_tiles // (tiles * num_out_warps * _NUM_MULTIPROCESSORS)))
    ring = Ring(
        tiles=tiles,
        num_out_warps=num_out_warps,
        num_in_warps=num_in_warps,
        num_stages=_LEAST_STAGES,
        is_ahead=num_programs * num_warps * registers[tiles] <= _REGISTERS,
        has_minimums=has_minimums,
    )
    num_stages = most_stages(ring, num_programs)
    if num_in_warps > 2:
        num_stages = -(-num_stages // 2)
    num_turns = -(-num_blocks // num_in_warps)
    num_stages = min(num_stages, max(3, -(-num_turns // 2)), _MOST_STAGES)
    return replace(ring, num_stages=max(_LEAST_STAGES, num_stages))


def most_ring_rows(num_tiles: int, num_blocks: int) -> int:
    """The most rows that go through rings on a Hopper GPU, where they have to have the bits of the kernel for few rows.

    Microseconds on an H200, in rings and in the kernel for few rows (benchmarks/int4_gpu.py --rings). A layer, in rings
    as deep as memory allows for: of 31B 89.6 and 101.7 with one row, 100.7 and 112.2 with 8, of E4B 34.9 and 49.4, 40.1
    and 53.6. 16 rows: 31B gate_up 50.2 and 68.2, qkv 27.6 and 35.2, but down 54.1 and 46.7, o 26.6 and 21.6; a layer of
    E4B, where every ring is faster, 67.8 and 82.1.
    """
    has_many_programs = choose_tuning(num_tiles, num_blocks, 16).num_in_warps <= 2
    return 16 if has_many_programs or num_tiles < 2 * _NUM_MULTIPROCESSORS else 8


def _ring_of_16(num_tiles: int, num_blocks: int, num_out_warps: int, num_in_warps: int) -> Ring:
    """The ring for 9 to 16 rows. They are read once for a program, from the second-level cache: the more of its tiles,
    the fewer bytes. In MB, codes with scales and x, with these tiles and with one for a warp: 31B gate_up 130 and 58
    (231), down 65 and 58 (231), qkv 50 and 44 (88), o 25 and 22 (88); E4B gate_up 29 and 26 (52), down 15 and 26
    (52)."""
    num_warps = num_out_warps * num_in_warps
    tiles = 1
    while (
        tiles < 4
        and num_tiles * num_in_warps >= 2 * tiles * _LEAST_WARPS_OF_16
        and num_warps * _REGISTERS_OF_16[2 * tiles][0] <= _REGISTERS
    ):
        tiles *= 2
    late, ahead = (num_warps * registers for registers in _REGISTERS_OF_16[tiles])
    needed = -(-num_tiles // (tiles * num_out_warps * _NUM_MULTIPROCESSORS))
    ring = Ring(
        tiles=tiles,
        num_out_warps=num_out_warps,
        num_in_warps=num_in_warps,
        num_stages=_LEAST_STAGES,
        is_ahead=needed * ahead <= _REGISTERS,
        row_tiles=2,
    )
    fitting = most_stages(ring, min(needed, _REGISTERS // late))
    num_stages = min(fitting, _MOST_STAGES, -(-num_blocks // num_in_warps) + 2)
    return replace(ring, num_stages=max(_LEAST_STAGES, num_stages // 2 * 2))


def most_stages(ring: Ring, num_programs: int) -> int:
    """The most stages that so many programs of a multiprocessor have room for."""
    return (_SHARED_BYTES // num_programs - _BYTES_OF_PROGRAM - _BYTES_BESIDE_TURNS) // ring.bytes_of_turn


_WIDE: WideKinds = {16: (4, 4, 3, 256), 32: (8, 2, 3, 256), 64: (16, 1, 4, 128)}
# Kinds for matrices with few outputs, and for those with few codes.
_NARROW: WideKinds = {16: (4, 4, 3, 256), 32: (4, 2, 3, 256), 64: (4, 2, 4, 128)}
_SMALL: WideKinds = {16: (4, 4, 3, 256), 32: (4, 2, 3, 256)}
_MOST_SMALL_BLOCKS = 4096


def choose_wide_tuning(
    num_tiles: int, num_blocks: int, num_rows: int, num_multiprocessors: int = _NUM_MULTIPROCESSORS
) -> WideTuning:
    """What bounds 31B gate_up on an H200, in microseconds: codes and scales are 130 MB, 31 from memory. Tensor cores
    take 8 for 16 rows and 30 for 64. Bringing codes to bfloat16 takes 15 of INT4, 22 of Q4_K. Rows of x are read once
    for a program, from the second-level cache, at about 5.5 TB/s: the more of its tiles, the fewer bytes, but the
    longer a program waits for its warps. Turns of 256 inputs have half as many barriers as those of 128.

    Timed (benchmarks/int4_wide_gpu.py --tune), in programs of 4, 8 and 16 tiles: 16 rows of gate_up 45.3, 46.5 and
    over 48.7, in turns of 128 inputs 48.7; 32 rows of it 59.3, 53.7 and 56.6, of down 33.3, 34.1 and 37.5; 64 rows of
    gate_up over 77.4, 76.4 and 76.9, of down 42.8, 47.3 and 49.2, of qkv 29.6, 33.3 and 34.9. 128 rows in one program
    and in two: gate_up 157 and 137. 64 rows of E4B's qkv take 13.0 in one program and 9.5 in two.
    """
    if num_tiles * num_blocks < _MOST_SMALL_BLOCKS:
        kinds = _SMALL
    elif num_rows <= max(_NARROW) and not is_wide(num_tiles, num_multiprocessors):
        kinds = _NARROW
    else:
        kinds = _WIDE
    return divide_turns(kinds, num_tiles, num_blocks * BLOCK_IN, num_rows, num_multiprocessors)
