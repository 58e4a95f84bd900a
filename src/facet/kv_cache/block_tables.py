"""Stores which block holds which tokens of each seat: a table per group, and the range of entries in use.

    entries of one seat     . . . b7 b2 b9 - - -
                                 ^first   ^end         before: returned as the window moved; after: not needed yet

Plain storage with arithmetic over many seats and all groups at once, by the rule of `accountant.block_range`; the
manager decides what happens.
"""

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from facet.kv_layout import KVLayout
from facet.step import SCRATCH_BLOCK

Seats = NDArray[np.int64]
Counts = NDArray[np.int64]
_EVERYTHING = 2**62


class TableEntries(NamedTuple):
    """Single entries of tables, as parallel arrays: group by group, and of a seat in ascending order."""

    groups: NDArray[np.int64]
    seats: Seats
    indices: Counts


class BlockTables:
    def __init__(self, layout: KVLayout, *, max_num_seqs: int, max_model_len: int) -> None:
        groups = layout.groups
        self._tokens_per_block = np.array([[group.tokens_per_block] for group in groups])
        # How many tokens before it a token sees.
        self._reach = np.array([[_EVERYTHING if group.window is None else group.window - 1] for group in groups])
        widths = [-(-max_model_len // group.tokens_per_block) for group in groups]
        *starts, size = itertools.accumulate((max_num_seqs * width for width in widths), initial=0)
        self._starts, self._widths = np.array(starts), np.array(widths)
        self._block_ids = np.full(size, SCRATCH_BLOCK, np.int32)
        self.block_ids = tuple(
            self._block_ids[start : start + max_num_seqs * width].reshape(max_num_seqs, width)
            for start, width in zip(starts, widths, strict=True)
        )
        self.first = np.zeros((len(groups), max_num_seqs), np.int64)
        self.end = np.zeros((len(groups), max_num_seqs), np.int64)

    def held(self, group: int, seat: int) -> NDArray[np.int32]:
        """The blocks of one seat, as a view."""
        return self.block_ids[group][seat, self.first[group, seat] : self.end[group, seat]]

    def num_held(self, group: int) -> int:
        """The number of entries of all seats."""
        return int((self.end[group] - self.first[group]).sum())

    def held_in_all_groups(self, seat: int) -> NDArray[np.int32]:
        return np.concatenate([self.held(group, seat) for group in range(len(self.block_ids))])

    def first_needed(self, num_computed: Counts) -> Counts:
        """[groups, seats]: the first entry that tokens behind the computed ones read."""
        first: Counts = np.maximum(num_computed - self._reach, 0) // self._tokens_per_block
        return first

    def end_needed(self, num_tokens: Counts) -> Counts:
        """[groups, seats]: the entries that so many tokens take."""
        end: Counts = -(-num_tokens // self._tokens_per_block)
        return end

    def num_lacking(self, seats: Seats, num_tokens: Counts) -> Counts:
        """How many blocks each seat lacks for so many tokens."""
        num_lacking: Counts = np.maximum(self.end_needed(num_tokens) - self.end[:, seats], 0).sum(0)
        return num_lacking

    def lacking(self, seats: Seats, num_tokens: Counts) -> TableEntries:
        """Entries without a block that so many tokens need."""
        return entries_between(seats, self.end[:, seats], self.end_needed(num_tokens))

    def beyond(self, seats: Seats, num_tokens: Counts) -> TableEntries:
        """Entries in use that so many tokens do not need."""
        return entries_between(seats, self.end_needed(num_tokens), self.end[:, seats])

    def behind_windows(self, seats: Seats, num_computed: Counts) -> TableEntries:
        """Entries in use that no token behind the computed ones reads."""
        return entries_between(seats, self.first[:, seats], self.first_needed(num_computed))

    def read(self, entries: TableEntries) -> NDArray[np.int32]:
        return self._block_ids[self._places(entries)]

    def append(self, entries: TableEntries, blocks: NDArray[np.int32]) -> None:
        """Fills entries at the end of what is in use."""
        self._block_ids[self._places(entries)] = blocks
        self.end[entries.groups, entries.seats] = entries.indices + 1  # of a seat's entries the last one stays

    def clear(self, seat: int) -> None:
        self.first[:, seat] = self.end[:, seat] = 0

    def _places(self, entries: TableEntries) -> NDArray[np.int64]:
        groups, seats, indices = entries
        places: NDArray[np.int64] = self._starts[groups] + seats * self._widths[groups] + indices
        return places


_NOTHING = np.zeros(0, np.int64)
NO_ENTRIES = TableEntries(_NOTHING, _NOTHING, _NOTHING)


def entries_between(seats: Seats, starts: Counts, stops: Counts) -> TableEntries:
    """Entries [starts[g, i], stops[g, i]) of group g of seats[i]. Empty ranges add nothing."""
    counts = stops - starts
    groups, columns = (counts > 0).nonzero()
    if not len(groups):
        return NO_ENTRIES
    counts, starts, seats = counts[groups, columns], starts[groups, columns], seats[columns]
    if counts.max() == 1:  # as in steps of single tokens
        return TableEntries(groups, seats, starts)
    before = np.cumsum(counts) - counts
    indices = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return TableEntries(np.repeat(groups, counts), np.repeat(seats, counts), indices)
