"""Chooses how a product with a matrix of eight bits is divided among programs, by its shape alone."""

from dataclasses import dataclass
from typing import Protocol


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
    is_vector: bool = False  # one row, in float32 arithmetic (`widened.py`)


class ChooseConfig(Protocol):
    def __call__(
        self, num_rows: int, num_out: int, num_in: int, is_fp8: bool, is_widened: bool = False
    ) -> Config | None:
        """`is_fp8`: both sides are. Then None is an answer: PyTorch's own product. `is_widened`: inputs are not
        rounded, and nothing but a product is asked for."""


# The most rows of a program that has the matrix's tile to itself.
MOST_ROWS_AT_ONCE = 64
# Programs that run at a time on an H200, two on each multiprocessor, or three with tiles half as wide.
_PROGRAMS, _NARROW_PROGRAMS = 264, 396
# A row of the matrix is cut into as many shares as fill these programs, but into none shorter than this.
_LEAST_INPUTS = 512


# One row times codes that are widened: 512 codes are one 16-byte load for each thread of a warp. Not chosen until it
# has been timed.
WIDENED_ROW = Config(1, 4, 1024, num_warps=2, num_stages=1, is_vector=True)
MAX_WIDENED_ROWS = 0


def choose_config(num_rows: int, num_out: int, num_in: int, is_fp8: bool, is_widened: bool = False) -> Config | None:
    """Times are microseconds on an H200, the matrix read from memory (benchmarks/quantized_gpu.py)."""
    if is_widened and num_rows <= MAX_WIDENED_ROWS:
        return WIDENED_ROW
    if num_rows <= MOST_ROWS_AT_ONCE:
        # 31B, one row and 64: gate_up 55.5 and 62.9, in bfloat16 108.6 and 115.5, bytes alone 53.8. In three shares
        # down takes 30.4 (32.6 in two, bytes 26.9) and o 13.3 (14.7 in one, bytes 10.2).
        num_tiles = -(-num_out // 64)
        shares = max(1, min(_PROGRAMS // num_tiles, num_in // _LEAST_INPUTS))
        is_narrow = num_rows > 32 or num_in % 256 != 0 or _PROGRAMS < num_tiles <= _NARROW_PROGRAMS
        block_in, num_stages = (128, 6) if is_narrow else (256, 4)
        rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else MOST_ROWS_AT_ONCE
        return Config(rows, 64, block_in, num_warps=4, num_stages=num_stages, shares=shares)
    if is_fp8:
        # 31B gate_up: 256 rows 118, in this room's tiles 138; 2048 rows 746 and 904.
        return None
    return Config(128, 128, 128, num_warps=4, num_stages=3)


def choose_one_config(num_rows: int, num_out: int, num_in: int, is_fp8: bool, is_widened: bool = False) -> Config:
    """The same for any number of rows: sums are always added in the same order."""
    return Config(64, 64, 128, num_warps=4, num_stages=4)
