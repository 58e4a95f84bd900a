"""How few-row products with shuffled codes are cut into programs and warps.

Memory is kept busy by 16 to 20 warps on every multiprocessor of an H200, each with a block on its way while it
multiplies another. A matrix of few outputs has too few tiles for that: several warps then share one and divide its
inputs.
"""

from dataclasses import dataclass

# Rows of one program. What they cost comes in tiles of eight, so these are kinds of kernels.
ROW_KINDS = (8, 16, 32, 64)
# From here on bringing a matrix to bfloat16 and multiplying by that is faster.
MAX_FEW_ROWS = 64
_WARPS = 132 * 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    tiles: int  # of 16 outputs, for one warp
    num_out_warps: int
    num_in_warps: int  # the only one that changes the order of sums


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
