"""Divides a step's rows for invariant attention: tiles of rows, and passes of tiles.

Knows nothing of kernels; `kernel.py` uses these.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Fewer keys make a decoded row quicker: a tile of 32 takes 3 to 4 us, and shares are worked on side by side. More leave
# less to put together behind a prompt, and fewer programs without keys in a graph captured for the longest context.
KEYS_PER_SHARE = 1024
# What shares leave behind takes memory by row: more rows than fit here are attended to in several passes.
PARTIALS_LIMIT = 256 * 2**20
# Rows of a product: tokens times the query heads that share a key head. More would serve prompts better; a decoded row
# fills one token's places, whatever their number.
ROWS_PER_PRODUCT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePass:
    """Tiles whose shares are in memory at the same time, and their rows."""

    tiles: range
    rows: range


def cut_rows(query_lens: tuple[int, ...], tokens_per_tile: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first row and the number of rows of every tile, in the order of rows. No tile has rows of two sequences."""
    lens = np.array(query_lens, np.int64)
    ends = np.cumsum(lens)
    counts = -(-lens // tokens_per_tile)
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = np.repeat(ends - lens, counts) + number * tokens_per_tile
    return firsts, np.minimum(np.repeat(ends, counts) - firsts, tokens_per_tile)


def make_passes(ends: NDArray[np.int64], most_rows: int | None) -> tuple[TilePass, ...]:
    """Tiles that end before these rows, as many to a pass as have no more than so many rows, and at least one."""
    passes: list[TilePass] = []
    first_tile = first_row = 0
    while first_tile < len(ends):
        end_tile = len(ends)
        if most_rows is not None:
            end_tile = max(first_tile + 1, int(np.searchsorted(ends, first_row + most_rows, side="right")))
        end_row = int(ends[end_tile - 1])
        passes.append(TilePass(tiles=range(first_tile, end_tile), rows=range(first_row, end_row)))
        first_tile, first_row = end_tile, end_row
    return tuple(passes)
