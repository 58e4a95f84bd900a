"""Chooses how a product with a matrix of eight bits is divided among programs, by its shape alone."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

# How sums are made: of codes times codes, exactly or of fp8, or of codes that are widened to numbers.
Sums = Literal["exact", "fp8", "widened"]


@dataclass(frozen=True, slots=True)
class Ring:
    """A program owns 64 rows of the matrix and 8 rows of x. `block_in` columns of them are a tile, and tiles come
    through a ring of places in shared memory."""

    block_in: int
    num_stages: int
    shares: int = 1  # into which a row of the matrix is cut: a program takes one

    @property
    def num_bytes(self) -> int:
        """The bytes of shared memory."""
        return (64 + 8) * self.block_in * self.num_stages


@dataclass(frozen=True, slots=True)
class Tiles:
    """How few rows that are not rounded are multiplied: each of `num_warps` warps owns so many tiles of 16 rows of the
    matrix."""

    tiles: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class Config:
    """A program owns `block_out` rows of the matrix and `rows` rows of x, and walks along them `block_in` columns at a
    time."""

    rows: int
    block_out: int
    block_in: int
    num_warps: int
    num_stages: int  # tiles on their way to shared memory at a time
    shares: int = 1  # into which a row of the matrix is cut: a program takes one
    in_turn: bool = False  # or all, one after the other
    is_vector: bool = False  # one row, in float32 arithmetic (`widened.py`)
    ring: Ring | None = None  # instead of all this, for rows of codes on a Hopper GPU
    tiles: Tiles | None = None  # the same, for rows of bfloat16 (`few_rows_kernel.py`)
    by_warpgroups: bool = False  # the same, for many rows of fp8 codes (`many_rows_kernel.py`): `block_in` and `shares`

    def tile_bytes(self, input_size: int) -> int:
        """The bytes of a tile of the codes and of x, whose numbers have `input_size` bytes each."""
        return (self.block_out + self.rows * input_size) * self.block_in


class ChooseConfig(Protocol):
    def __call__(self, num_rows: int, num_out: int, num_in: int, sums: Sums, is_plain: bool = False) -> Config | None:
        """`is_plain`: nothing but a product is asked for. None, for fp8 alone: PyTorch's own product."""


# The most rows of a program that has the matrix's tile to itself.
MOST_ROWS_AT_ONCE = 64
# Programs that run at a time on an H200, two on each multiprocessor, or three with tiles half as wide.
_PROGRAMS, _NARROW_PROGRAMS = 264, 396
# A row of the matrix is cut into as many shares as fill these programs, but into none shorter than this.
_LEAST_INPUTS = 512
# Up to so many rows of codes go through rings (benchmarks/quantized_gpu.py --rings). 1 row of 31B: down 27.8 for 30.0,
# qkv 20.4 for 21.6, o 12.2 for 13.3; of E4B: gate_up 13.1 for 15.7, down 7.8 for 9.5, o 3.4 for 4.4. With 8 rows the
# same.
MAX_RING_ROWS = 8
# Whether a single row that goes through a ring is rounded there, and not by a kernel before: a token of 31B takes 8.85
# ms and not 9.10, of E4B 2.37 and not 2.50.
RING_ROUNDS = True
_MOST_STAGES = 10
# Shared memory for all programs that a multiprocessor holds if they are spread evenly. With more of them rings are
# short, and no gain: 31B gate_up, six programs with three tiles each, 69.1 for 54.6.
_RING_BYTES, _MOST_RING_PROGRAMS = 192 << 10, 3
_NUM_MULTIPROCESSORS = 132
# Tiles of 128 rows and 128 outputs: so many occupy the multiprocessors. From so many rows on there are no others. E4B's
# down, in microseconds: 100 rows 27.6, in tiles of 64 19.4; 512 rows 29.0 and 64.2.
_LEAST_LARGE_TILES, _MANY_ROWS = 88, 256
# PyTorch's product takes outputs in multiples of this many.
_SCALED_MM_OUTPUTS = 16


# One row times codes that are widened: 512 codes are one 16-byte load for each thread of a warp. The head of 31B: int8
# 328, fp8 319, byte by byte 457 and 392; of E4B 154 and 151, 195 and 185. Two warps and twice the inputs: 349 and 351.
WIDENED_ROW = Config(1, 4, 512, num_warps=1, num_stages=1, is_vector=True)
MAX_WIDENED_ROWS = 1
# Few rows times the codes of a head, widened for tensor cores (benchmarks/quantized_gpu.py --heads). The head of 31B,
# one row and 8: int8 339 and 348, fp8 343 and 352, bytes alone 328; one tile of a warp 346 and 366. In Triton 8 rows
# take 573 and 614. A single row is 3 to 8% faster as above, but here has the same bits alone and among others.
HEAD_TILES = Tiles(tiles=2, num_warps=2)
MAX_TILED_ROWS = 8
_LEAST_TILED_OUTPUTS = 65536


def choose_config(num_rows: int, num_out: int, num_in: int, sums: Sums, is_plain: bool = False) -> Config | None:
    """Times are microseconds on an H200, the matrix read from memory (benchmarks/quantized_gpu.py)."""
    is_plainly_widened = is_plain and sums == "widened"
    config = _choose_config(num_rows, num_out, num_in, sums)
    if is_plainly_widened and 0 < num_rows <= MAX_WIDENED_ROWS:
        config = WIDENED_ROW
    if config is not None and is_plainly_widened and 0 < num_rows <= MAX_TILED_ROWS and num_out >= _LEAST_TILED_OUTPUTS:
        return replace(config, tiles=HEAD_TILES)
    return config


def _choose_config(num_rows: int, num_out: int, num_in: int, sums: Sums) -> Config | None:
    """How tensor cores multiply, with codes that pass through shared memory. None, for fp8 alone: PyTorch's own
    product."""
    if num_rows <= MOST_ROWS_AT_ONCE:
        # 31B, one row and 64: gate_up 55.5 and 62.9, in bfloat16 108.6 and 115.5, bytes alone 53.8. In three shares
        # down takes 30.4 (32.6 in two, bytes 26.9) and o 13.3 (14.7 in one, bytes 10.2).
        is_narrow = num_rows > 32 or _block_in_of(num_out, num_in) == 128
        block_in, num_stages = (128, 6) if is_narrow else (256, 4)
        rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else MOST_ROWS_AT_ONCE
        shares, ring = _shares_of(num_out, num_in), choose_ring(num_rows, num_out, num_in)
        return Config(rows, 64, block_in, num_warps=4, num_stages=num_stages, shares=shares, ring=ring)
    if sums == "fp8" and num_out % _SCALED_MM_OUTPUTS == 0:
        # 31B gate_up: 256 rows 118, in this room's tiles 138; 2048 rows 746 and 904.
        return None
    return Config(128, 128, 128, num_warps=4, num_stages=3)


def choose_in_one_order(num_rows: int, num_out: int, num_in: int, sums: Sums, is_plain: bool = False) -> Config | None:
    """A choice with which a row's sums have the same bits, however many rows there are: exact sums in any order, those
    of widened codes in one chain (`linear/chain.py`), however large the tiles, and those of fp8 in the matrix's shares
    and tiles."""
    if sums == "exact":
        return choose_config(num_rows, num_out, num_in, sums, is_plain)
    if sums == "fp8":
        return _choose_in_shares(num_rows, num_out, num_in)
    config = _choose_config(num_rows, num_out, num_in, sums)
    assert config is not None, "PyTorch multiplies fp8 alone"
    return replace(config, shares=1)


def _choose_in_shares(num_rows: int, num_out: int, num_in: int) -> Config:
    """Tensor cores sum the inputs of a tile, 32 at a time and from zero. Such sums are added in float32, first those of
    a share and then shares, always in their order. So `block_in` and `shares` are the matrix's, and all else is free.
    Up to 32 rows this is the usual choice."""
    block_in, num_tiles = _block_in_of(num_out, num_in), -(-num_rows // 128) * -(-num_out // 128)
    if num_rows >= _MANY_ROWS or (num_rows > 128 and num_tiles >= _LEAST_LARGE_TILES):
        shares, num_stages = _shares_of(num_out, num_in), 3 if block_in == 256 else 6
        return Config(
            128, 128, block_in, num_warps=8, num_stages=num_stages, shares=shares, in_turn=True, by_warpgroups=True
        )
    # More than 64 rows take the tiles of 64: too few large ones would leave multiprocessors idle.
    config = _choose_config(min(num_rows, MOST_ROWS_AT_ONCE), num_out, num_in, "fp8")
    assert config is not None, "PyTorch multiplies more rows"
    return config if config.block_in == block_in else replace(config, block_in=block_in, num_stages=3)


def choose_ring(num_rows: int, num_out: int, num_in: int) -> Ring | None:
    is_served = _ring_programs(num_out, num_in) <= _MOST_RING_PROGRAMS
    return ring_of(num_out, num_in) if is_served and 0 < num_rows <= MAX_RING_ROWS else None


def ring_of(num_out: int, num_in: int) -> Ring:
    """A ring as deep as shared memory allows, up to a bound and to the tiles there are; wide tiles where four of them
    fit."""
    shares = _shares_of(num_out, num_in)
    num_bytes = _RING_BYTES // min(6, _ring_programs(num_out, num_in))
    block_in = 256 if num_in % 256 == 0 and num_bytes >= Ring(256, 4).num_bytes else 128
    num_tiles = -(-num_in // (block_in * shares))
    num_stages = min(_MOST_STAGES, num_bytes // Ring(block_in, 1).num_bytes, num_tiles)
    return Ring(block_in, max(2, num_stages), shares)


def _ring_programs(num_out: int, num_in: int) -> int:
    """How many programs of a ring a multiprocessor has."""
    return -(-(-(-num_out // 64) * _shares_of(num_out, num_in)) // _NUM_MULTIPROCESSORS)


def _block_in_of(num_out: int, num_in: int) -> int:
    """How many inputs a tile of few rows has, as `ring_of` has it where rings are chosen."""
    num_tiles = -(-num_out // 64)
    return 128 if num_in % 256 != 0 or _PROGRAMS < num_tiles <= _NARROW_PROGRAMS else 256


def _shares_of(num_out: int, num_in: int) -> int:
    num_tiles = -(-num_out // 64)
    return max(1, min(_PROGRAMS // num_tiles, num_in // _LEAST_INPUTS))
