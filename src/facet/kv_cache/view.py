"""What the scheduler may know of the cache while it decides: counts of blocks, never their ids. Read-only."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facet.kv_cache.accountant import block_range
from facet.kv_cache.block_pool import NO_BLOCKS, BlockPool, Blocks
from facet.kv_cache.block_tables import BlockTables, Seats
from facet.kv_cache.marks import Marks, PromptName
from facet.kv_cache.prefix_chain import PrefixChain
from facet.kv_cache.prefix_index import PrefixHit, PrefixIndex
from facet.kv_layout import KVLayout

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class CacheView:
    """The cache as it stands before step `step`."""

    step: int
    layout: KVLayout
    _pool: BlockPool
    _tables: BlockTables
    _prefixes: PrefixIndex | None
    _marks: Marks

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free ones, and those that only the prefix cache holds."""
        return self._pool.num_ready + self._pool.num_cached

    @property
    def frees_are_immediate(self) -> bool:
        """Whether a block that was last touched by the step before this one may already be written by this one."""
        return self._pool.horizon >= self.step - 1

    def match(self, chain: PrefixChain) -> PrefixHit | None:
        return None if self._prefixes is None else self._prefixes.match(chain)

    def is_under_way(self, prompt: PromptName) -> bool:
        """Whether a running request is computing this very prompt, and will leave it in the prefix cache."""
        return self._marks.is_under_way(prompt)

    def num_new_blocks(self, seats: Seats, num_computed: Counts, num_scheduled: Counts) -> Counts:
        """Per seat, the blocks its table lacks for this step."""
        return self._tables.num_lacking(seats, num_computed + num_scheduled)

    def num_returning(self, seats: Seats, num_computed: Counts) -> int:
        """Blocks that come back at once as these seats' windows move up to `num_computed`."""
        if not self.frees_are_immediate:
            return 0
        blocks = self.behind_windows(seats, num_computed)
        if not len(blocks):
            return 0
        refs = self._pool.table_refs[blocks]
        returning = np.count_nonzero(refs == 1)
        shared = blocks[refs > 1]
        if len(shared):  # comes back if every table that holds it lets go now
            blocks, num_let_go = np.unique(shared, return_counts=True)
            returning += np.count_nonzero(self._pool.table_refs[blocks] == num_let_go)
        return int(returning)

    def what_if(self) -> "WhatIf":
        return WhatIf(self)

    def behind_windows(self, seats: Seats, num_computed: Counts) -> Blocks:
        """Blocks that these seats let go of as their windows move up to `num_computed`."""
        entries = self._tables.behind_windows(seats, num_computed)
        return self._tables.read(entries) if len(entries.seats) else NO_BLOCKS


class WhatIf:
    """Computes what would be available if certain seats gave up their blocks."""

    def __init__(self, cache: CacheView) -> None:
        self.layout = cache.layout
        self._cache = cache
        self._refs = cache._pool.table_refs.copy()
        self._window_moved_to: dict[int, int] = {}
        self.num_available = cache.num_available
        # Freed, but a step in flight may still touch them: none where frees are immediate.
        self._num_promised = int(np.count_nonzero(cache._pool.is_fenced))

    def move_windows(self, seats: Seats, num_computed: Counts) -> None:
        self._window_moved_to.update(zip(seats.tolist(), num_computed.tolist(), strict=True))
        self._release(self._cache.behind_windows(seats, num_computed))

    def claim_of(self, hit: PrefixHit) -> Blocks:
        """The available blocks that a request using this hit takes."""
        blocks: Blocks = np.concatenate([part for group in hit.blocks for part in (group.shared, group.copied)])
        pool = self._cache._pool
        refs = self._refs if self._cache.frees_are_immediate else np.maximum(self._refs, pool.table_refs)
        is_free: NDArray[np.bool_] = (refs[blocks] == 0) & ~pool.is_fenced[blocks]
        return blocks[is_free]

    def claim(self, blocks: Blocks) -> None:
        self._refs[blocks] += 1
        self.num_available -= len(blocks)

    def let_go(self, seat: int) -> None:
        """All blocks that the seat still holds after its window was moved."""
        tables, num_computed = self._cache._tables, self._window_moved_to[seat]
        for index, group in enumerate(self._cache.layout.groups):
            first, _ = block_range(group, num_computed, 0)
            self._release(tables.block_ids[index][seat, first : tables.end[index][seat]])

    def num_new_blocks(self, seat: int, num_computed: int, num_scheduled: int) -> int:
        ends = (block_range(group, num_computed, num_scheduled)[1] for group in self._cache.layout.groups)
        held = (int(end[seat]) for end in self._cache._tables.end)
        return sum(max(0, end - held_end) for end, held_end in zip(ends, held, strict=True))

    def fits(self, seat: int, num_computed: int, num_scheduled: int) -> bool:
        return self.num_new_blocks(seat, num_computed, num_scheduled) <= self.num_available

    def will_fit(self, seat: int, num_computed: int, num_scheduled: int) -> bool:
        """Whether the tokens will fit, at the latest when the steps in flight have retired."""
        needed = self.num_new_blocks(seat, num_computed, num_scheduled)
        return needed <= self.num_available + self._num_promised

    def most_tokens_that_fit(self, seat: int, num_computed: int, wanted: int) -> int:
        low, high = 0, wanted
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.fits(seat, num_computed, middle) else (low, middle - 1)
        return low

    def _release(self, blocks: Blocks) -> None:
        np.subtract.at(self._refs, blocks, 1)
        num_freed = len(np.unique(blocks[self._refs[blocks] == 0]))
        if self._cache.frees_are_immediate:
            self.num_available += num_freed
        else:
            self._num_promised += num_freed
