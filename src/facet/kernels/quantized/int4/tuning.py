"""How few-row products with shuffled codes are cut into programs and warps.

Memory is kept busy by 16 to 20 warps on every multiprocessor of an H200, each with a block on its way while it
multiplies another. A matrix of few outputs has too few tiles for that: several warps then share one and divide its
inputs.
"""

from dataclasses import dataclass, replace

from facet.kernels.quantized.int4.shuffled import BLOCK_IN, ShuffledInt4

# Rows of one program. What they cost comes in tiles of eight, so these are kinds of kernels.
ROW_KINDS = (8, 16, 32, 64)
# From here on the wide kernel is faster, and from there on bringing a matrix to bfloat16 before it is multiplied.
MAX_FEW_ROWS, MAX_WIDE_ROWS = 8, 256
# Of experts, rows of each: from there on their matrices are brought to bfloat16 too.
MAX_FEW_ROWS_OF_EXPERT = 64
_NUM_MULTIPROCESSORS = 132
_WARPS = _NUM_MULTIPROCESSORS * 16
# Of shared memory, for all programs of a multiprocessor, and what each of them takes beside its own.
_SHARED_BYTES, _BYTES_OF_PROGRAM = 232_448, 1024
_REGISTERS = 65_536
_MOST_STAGES = 16
# Warps of a multiprocessor whose registers suffice, and registers of a warp that loads inputs ahead, by its tiles.
_RING_WARPS, _REGISTERS_AHEAD = 24, {1: 32 * 80, 2: 32 * 112}
# Whether up to 8 rows go through rings that warps have of their own: a block takes 170 instructions and not 188, two
# barriers follow the last and not sixteen (E4B's down). They have not been timed (benchmarks/int4_gpu.py --rings).
HAS_OWN_RINGS = False
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
        """How kernels are told, for programs of so many rows."""
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


def choose_tuning(num_tiles: int, num_blocks: int, num_rows: int) -> Tuning:
    """How a row's sums are cut follows from the matrix alone: its result does not depend on how many share the call.

    Microseconds on an H200, one row (benchmarks/int4_gpu.py --tune): 31B gate_up 44.5 in two tiles and 2 x 2 warps,
    49.9 in one and 4 x 1; qkv 21.5 and 28.0; down 25.4 in one tile and 1 x 8, 27.9 in two; o 10.6 and 16.4 in 2 x 4.
    """
    num_in_warps = 2 if num_blocks >= 4 else 1
    while num_in_warps < 16 and num_tiles * num_in_warps * 2 <= _WARPS * 3 // 2 and num_in_warps * 4 <= num_blocks:
        num_in_warps *= 2
    # Two tiles share what is loaded of x, as long as there are registers for their sums and tiles for all warps.
    tiles = 2 if num_in_warps <= 2 and rows_of_program(num_rows) <= 32 else 1
    return Tuning(tiles=tiles, num_out_warps=max(1, 4 // num_in_warps), num_in_warps=num_in_warps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """As `Tuning`, where codes and scales of a few turns lie in shared memory. A turn is one block for every warp, of
    each of its tiles."""

    tiles: int
    num_out_warps: int
    num_in_warps: int  # the only one that changes the order of sums
    num_stages: int  # turns, an even number where warps share it
    is_ahead: bool  # inputs of a turn are loaded before the turn ahead of it is multiplied, not after
    row_tiles: int = 1  # of 8 rows, at most two
    is_own: bool = False  # every warp has one (`own_ring_kernel.py`)

    @property
    def num_warps(self) -> int:
        return self.num_out_warps * self.num_in_warps

    @property
    def num_bytes(self) -> int:
        """Of shared memory."""
        return self.num_stages * self.num_warps * self.tiles * (1024 + 128) + 128 * self.is_own

    def constants(self, matrix: ShuffledInt4) -> dict[str, int]:
        """How the kernel is told."""
        return {
            "TILES": self.tiles,
            "NUM_OUT_WARPS": self.num_out_warps,
            "NUM_IN_WARPS": self.num_in_warps,
            "STAGES": self.num_stages,
            "IS_AHEAD": self.is_ahead,
            "HAS_TAIL": matrix.num_inputs % (BLOCK_IN * self.num_in_warps) != 0,
            "num_warps": self.num_warps,
        }


def ring_of(num_tiles: int, num_blocks: int, num_rows: int = 1, *, is_own: bool | None = None) -> Ring:
    """Sums are cut as `choose_tuning` cuts them, so bits are the same. All programs run at a time if they can, in rings
    as deep as shared memory allows for then."""
    num_in_warps = choose_tuning(num_tiles, num_blocks, 1).num_in_warps
    num_out_warps = max(1, 4 // num_in_warps)
    while num_out_warps > 1 and num_tiles < num_out_warps * _NUM_MULTIPROCESSORS:
        num_out_warps //= 2
    if num_rows > 8:
        return _ring_of_16(num_tiles, num_blocks, num_out_warps, num_in_warps)
    num_warps = num_out_warps * num_in_warps
    most_programs = max(2, _RING_WARPS // num_warps)
    tiles = 1 if num_tiles <= num_out_warps * most_programs * _NUM_MULTIPROCESSORS else 2
    num_programs = min(most_programs, -(-num_tiles // (tiles * num_out_warps * _NUM_MULTIPROCESSORS)))
    ring = Ring(
        tiles=tiles,
        num_out_warps=num_out_warps,
        num_in_warps=num_in_warps,
        num_stages=2,
        is_ahead=num_programs * num_warps * _REGISTERS_AHEAD[tiles] <= _REGISTERS,
        is_own=HAS_OWN_RINGS if is_own is None else is_own,
    )
    return _deepened(ring, num_programs, num_blocks)


def most_ring_rows(num_tiles: int, num_blocks: int) -> int:
    """Up to so many rows go through rings on a Hopper GPU, where they have to have the bits of the kernel for few rows.

    Up to 8 a token of 31B takes 7.26 ms and not 7.67, of E4B 2.42 and not 2.66. 16 rows, in microseconds on an H200, in
    rings and in the kernel for few rows (benchmarks/int4_gpu.py --rings): 31B gate_up 50.2 and 68.2, qkv 27.6 and 35.2,
    but down 54.1 and 46.7, o 26.6 and 21.6; a layer of E4B, where every ring is faster, 67.8 and 82.1.
    """
    has_many_programs = choose_tuning(num_tiles, num_blocks, 16).num_in_warps <= 2
    return 16 if has_many_programs or num_tiles < 2 * _NUM_MULTIPROCESSORS else 8


def _ring_of_16(num_tiles: int, num_blocks: int, num_out_warps: int, num_in_warps: int) -> Ring:
    """Of 9 to 16 rows. They are read once for a program, from the second-level cache: the more of its tiles, the fewer
    bytes. In MB, codes with scales and x, with these tiles and with one for a warp: 31B gate_up 130 and 58 (231), down
    65 and 58 (231), qkv 50 and 44 (88), o 25 and 22 (88); E4B gate_up 29 and 26 (52), down 15 and 26 (52)."""
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
        num_stages=2,
        is_ahead=needed * ahead <= _REGISTERS,
        row_tiles=2,
    )
    return _deepened(ring, min(needed, _REGISTERS // late), num_blocks)


def _deepened(ring: Ring, num_programs: int, num_blocks: int) -> Ring:
    """With as many stages as so many programs of a multiprocessor have room for."""
    num_bytes, num_turns = _SHARED_BYTES // num_programs - _BYTES_OF_PROGRAM, -(-num_blocks // ring.num_in_warps)
    bytes_of_turn = ring.num_warps * ring.tiles * (1024 + 128)
    num_stages = min(_MOST_STAGES, num_turns + 2, (num_bytes - 128 * ring.is_own) // bytes_of_turn)
    return replace(ring, num_stages=max(2, num_stages if ring.is_own else num_stages // 2 * 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class WideTuning:
    rows: int  # of a program
    tiles: int  # of 16 outputs, and warps
    shares: int  # into which the blocks of a tile are cut
    stages: int  # blocks in shared memory


# Programs that run at a time on an H200, by their rows: four on each multiprocessor, two, or one.
_WIDE_PROGRAMS = {16: 528, 32: 528, 64: 264, 128: 132}
_LEAST_BLOCKS = 4  # of a share


def choose_wide_tuning(num_tiles: int, num_blocks: int, num_rows: int) -> WideTuning:
    rows = next((kind for kind in _WIDE_PROGRAMS if num_rows <= kind), 128)
    num_programs = _WIDE_PROGRAMS[rows]
    # More tiles share what is loaded of x, where there are enough of them.
    tiles = 8 if rows == 128 or (rows == 64 and num_tiles >= 8 * num_programs) else 4
    num_places = -(-num_tiles // tiles) * -(-num_rows // rows)
    shares = max(1, min(num_programs // num_places, num_blocks // _LEAST_BLOCKS))
    return WideTuning(rows=rows, tiles=tiles, shares=shares, stages=3 if rows == 128 else 4)
