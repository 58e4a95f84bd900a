"""Stores which block holds which tokens of each seat: a table per group, and the range of entries in use.

    entries of one seat     . . . b7 b2 b9 - - -
                                 ^first   ^end         before: returned as the window moved; after: not needed yet

Plain storage with arithmetic over many seats at once; the manager decides what happens.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facet.kv_layout import KVLayout
from facet.step import SCRATCH_BLOCK

Seats = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TableEntries:
    """Single entries of one group's tables, as parallel arrays."""

    seats: Seats
    indices: NDArray[np.int64]


class BlockTables:
    def __init__(self, layout: KVLayout, *, max_num_seqs: int, max_model_len: int) -> None:
        self.block_ids = tuple(
            np.full((max_num_seqs, -(-max_model_len // group.tokens_per_block)), SCRATCH_BLOCK, np.int32)
            for group in layout.groups
        )
        self.first = tuple(np.zeros(max_num_seqs, np.int64) for _ in layout.groups)
        self.end = tuple(np.zeros(max_num_seqs, np.int64) for _ in layout.groups)

    def held(self, group: int, seat: int) -> NDArray[np.int32]:
        """The blocks of one seat, as a view."""
        return self.block_ids[group][seat, self.first[group][seat] : self.end[group][seat]]

    def num_held(self, group: int) -> int:
        """Entries of all seats."""
        return int((self.end[group] - self.first[group]).sum())

    def held_in_all_groups(self, seat: int) -> NDArray[np.int32]:
        return np.concatenate([self.held(group, seat) for group in range(len(self.block_ids))])

    def read(self, group: int, entries: TableEntries) -> NDArray[np.int32]:
        return self.block_ids[group][entries.seats, entries.indices]

    def clear(self, seat: int) -> None:
        for first, end in zip(self.first, self.end, strict=True):
            first[seat] = end[seat] = 0


def entries_between(seats: Seats, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> TableEntries:
    """Entries [starts[i], stops[i]) of seats[i], for all i, one after the other. Empty ranges add nothing."""
    counts = stops - starts
    some = counts > 0
    if not some.any():
        nothing = np.zeros(0, np.int64)
        return TableEntries(nothing, nothing)
    seats, starts, counts = seats[some], starts[some], counts[some]
    before = np.cumsum(counts) - counts
    indices = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return TableEntries(np.repeat(seats, counts), indices)
