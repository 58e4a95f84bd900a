"""Tracks what holds each page, and when a page that nothing holds may be written again.

A page is held by *tables* (requests that read or write it) and by *checkpoints* (the prefix cache, which only needs it
unchanged). Its holders determine its state:

    ready ──take──► in tables ──last table lets go──► fenced ──horizon passes──► cached   (checkpoints hold it)
      ▲                 ▲                                                      └► ready    (nothing does)
      │                 └──share───── cached, fenced
      └──last checkpoint drops it──── cached

**Blocks are reused late.** A step in flight may still touch a block that its owner has given up. So each block has a
*fence*, the number of the last step that may touch it, and is not allocated before the horizon has reached it. The
caller sets the horizon: the step before the writer where one stream orders all work, else the last step that has
retired.

Knows neither requests nor tokens nor groups.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from facet.step import SCRATCH_BLOCK

Blocks = NDArray[np.int32]
NO_BLOCKS: Blocks = np.zeros(0, np.int32)


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs a scratch block and one more, got {num_blocks}")
        self.num_blocks = num_blocks
        self.horizon = 0
        self.num_cached = 0  # held by checkpoints alone, fence passed: what eviction can make ready
        self.table_refs = np.zeros(num_blocks, np.int32)
        self.checkpoint_refs = np.zeros(num_blocks, np.int32)
        # The xor of the checkpoints that hold a block: where only one does, this is the one.
        self.checkpoint_xor = np.zeros(num_blocks, np.int32)
        self._fence = np.zeros(num_blocks, np.int64)
        self.is_fenced = np.zeros(num_blocks, np.bool_)
        self._fenced: deque[Blocks] = deque()
        # A stack: the block freed last is written next, so that a read of dead memory shows early.
        self._ready = np.arange(num_blocks - 1, SCRATCH_BLOCK, -1, dtype=np.int32)
        self._num_ready = num_blocks - 1
        self._freed: list[Blocks] = []

    @property
    def num_ready(self) -> int:
        return self._num_ready

    @property
    def num_in_tables(self) -> int:
        return int(np.count_nonzero(self.table_refs))

    def take(self, count: int) -> Blocks:
        """Gives ready blocks to one table each."""
        if not count:
            return NO_BLOCKS
        assert count <= self._num_ready, f"asked for {count} blocks, {self._num_ready} are ready"
        start = self._num_ready - count
        blocks = self._ready[start : self._num_ready].copy()
        self._num_ready = start
        self.table_refs[blocks] = 1
        return blocks

    def share(self, blocks: Blocks) -> None:
        """Counts one more table that reads these blocks, each named once."""
        assert self._is_held(blocks).all(), "only a block that is held can be shared"
        unused = self.table_refs[blocks] == 0
        self.num_cached -= int(np.count_nonzero(unused & ~self.is_fenced[blocks]))
        self.is_fenced[blocks] = False
        self.table_refs[blocks] += 1

    def release(self, blocks: Blocks, fence: int) -> None:
        """Lets tables let go of blocks, which steps up to `fence` may still touch. A block may be named twice."""
        np.subtract.at(self.table_refs, blocks, 1)
        self._fence[blocks] = np.maximum(self._fence[blocks], fence)
        unused = blocks[self.table_refs[blocks] == 0]
        if len(unused) > 1:
            unused = np.unique(unused)
        if fence <= self.horizon:
            # An earlier table may have let go under a later fence.
            late = self._fence[unused] > self.horizon
            self._unfence(unused[~late])
            unused = unused[late]
        if len(unused):
            self.is_fenced[unused] = True
            self._fenced.append(unused)

    def advance_horizon(self, horizon: int) -> None:
        """Moves the horizon: steps up to `horizon` no longer prevent blocks from being written again."""
        self.horizon = max(self.horizon, horizon)
        for _ in range(len(self._fenced)):
            blocks = self._fenced.popleft()
            blocks = blocks[self.is_fenced[blocks]]  # some were shared again, perhaps released again since
            passed = self._fence[blocks] <= self.horizon
            self.is_fenced[blocks[passed]] = False
            self._unfence(blocks[passed])
            if not passed.all():
                self._fenced.append(blocks[~passed])

    def hold(self, blocks: Blocks, checkpoint: int) -> None:
        """Holds blocks that a checkpoint needs unchanged; each is named once and is held already."""
        assert self._is_held(blocks).all(), "only a block that is held can be kept"
        self._count_cached(blocks, -1)
        self.checkpoint_refs[blocks] += 1
        self.checkpoint_xor[blocks] ^= checkpoint
        self._count_cached(blocks, +1)

    def drop(self, blocks: Blocks, checkpoint: int) -> None:
        """Drops blocks that a checkpoint no longer wants."""
        self._count_cached(blocks, -1)
        self.checkpoint_refs[blocks] -= 1
        self.checkpoint_xor[blocks] ^= checkpoint
        self._count_cached(blocks, +1)
        idle = (self.table_refs[blocks] == 0) & (self.checkpoint_refs[blocks] == 0) & ~self.is_fenced[blocks]
        self._make_ready(blocks[idle])

    def is_cached(self, blocks: Blocks) -> NDArray[np.bool_]:
        """Which of these blocks are held by checkpoints alone."""
        refs = (self.checkpoint_refs[blocks] > 0) & (self.table_refs[blocks] == 0)
        return np.asarray(refs & ~self.is_fenced[blocks])

    def blocks_per_sole_checkpoint(self, num_checkpoints: int) -> NDArray[np.int64]:
        """For each checkpoint, how many blocks would become ready if it alone were dropped."""
        sole = (self.checkpoint_refs == 1) & (self.table_refs == 0) & ~self.is_fenced
        return np.bincount(self.checkpoint_xor[sole], minlength=num_checkpoints)

    def collect_freed(self) -> Blocks:
        """The blocks that became ready since the last call: nothing reads their contents any more."""
        if not self._freed:
            return NO_BLOCKS
        freed = np.concatenate(self._freed)
        self._freed.clear()
        return freed

    def check_integrity(self) -> None:
        """Checks that every block is in exactly one state, and that the counts agree."""
        ready = self._ready[: self._num_ready]
        held = (self.table_refs > 0) | (self.checkpoint_refs > 0) | self.is_fenced
        held[SCRATCH_BLOCK] = True
        assert min(self.table_refs.min(), self.checkpoint_refs.min()) >= 0, "a block was let go twice"
        assert self.table_refs[SCRATCH_BLOCK] == 0, "the scratch block was given away"
        assert len(np.unique(ready)) == len(ready), "a block is ready twice"
        assert not held[ready].any(), "a block is ready and held"
        assert held.sum() + len(ready) == self.num_blocks, "a block leaked"
        fenced = np.zeros(self.num_blocks, np.bool_)
        for blocks in self._fenced:
            fenced[blocks] = True
        assert not (self.is_fenced & ~fenced).any(), "a fenced block would never come back"
        assert not (self.is_fenced & (self.table_refs > 0)).any(), "a block in a table is fenced"
        assert self.num_cached == self.is_cached(np.arange(self.num_blocks, dtype=np.int32)).sum()
        assert not self.checkpoint_xor[self.checkpoint_refs == 0].any()

    def _is_held(self, blocks: Blocks) -> NDArray[np.bool_]:
        held = (self.table_refs[blocks] > 0) | (self.checkpoint_refs[blocks] > 0)
        return np.asarray(held)

    def _count_cached(self, blocks: Blocks, sign: int) -> None:
        self.num_cached += sign * int(np.count_nonzero(self.is_cached(blocks)))

    def _unfence(self, blocks: Blocks) -> None:
        kept = self.checkpoint_refs[blocks] > 0
        self.num_cached += int(np.count_nonzero(kept))
        self._make_ready(blocks[~kept])

    def _make_ready(self, blocks: Blocks) -> None:
        if len(blocks):
            end = self._num_ready + len(blocks)
            self._ready[self._num_ready : end] = blocks
            self._num_ready = end
            self._freed.append(blocks)
