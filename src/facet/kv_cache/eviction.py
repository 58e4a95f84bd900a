"""Ranks the checkpoints of the prefix cache: which one to give up first.

A checkpoint is worth the prefill it will save, soon, for the memory it holds:

                    tokens saved
    worth = ────────────────────────────
            blocks freed * expected wait

* *Tokens saved* counts from the next shorter checkpoint of the same sequence: that one is the fallback. So losing a
  checkpoint raises the worth of the one behind it, and hits shrink step by step instead of vanishing.
* *Blocks freed* counts blocks that nothing else holds: checkpoints of one sequence share most of theirs.
* *Expected wait* until the next use is judged by the age of the last use and the interval between the last two: just
  after a use a whole interval lies ahead, and what is long overdue will hardly come. A sequence seen once is ranked by
  age alone. So a loop over more sessions than fit, which empties a least-recently-used cache for all of them, keeps
  some of the sessions here and serves those.
* A checkpoint with exactly one longer one behind it has mostly served: the chat went on. It keeps a fraction of its
  worth, for requests that turn off before the longer one. With two behind it, it is a place where requests part.

Knows numbers, no blocks and no tokens.
"""

import numpy as np
from numpy.typing import NDArray

# The share of its worth that a checkpoint with one longer one keeps. Hit rates of simulated chats at half and full
# working set: replies that come back as they were like it low (0.46, 0.67 at 0.1; 0.32, 0.53 at 0.5), replies that come
# back edited, such as with their thoughts cut out, like it high (0.23, 0.37 at 0.1; 0.36, 0.56 at 0.5). At a quarter
# neither suffers much: 0.36, 0.59 and 0.36, 0.54.
BRANCH_CHANCE = 0.25


class EvictionOrder:
    """The numbers that rank checkpoints, as arrays over checkpoint numbers."""

    def __init__(self, capacity: int = 64) -> None:
        self.is_kept = np.zeros(capacity, np.bool_)
        self.position = np.zeros(capacity, np.int64)
        self.fallback = np.zeros(capacity, np.int64)  # position of the next shorter checkpoint, or 0
        self.num_longer = np.zeros(capacity, np.int64)  # checkpoints whose fallback this is
        self.last_use = np.zeros(capacity, np.int64)  # in ticks: one per request that entered
        self.interval = np.zeros(capacity, np.int64)  # ticks between the last two uses; 0: not known
        self._free = list(range(capacity - 1, -1, -1))

    @property
    def capacity(self) -> int:
        return len(self.is_kept)

    @property
    def num_kept(self) -> int:
        return self.capacity - len(self._free)

    def add(self, *, position: int, fallback: int, now: int, interval: int) -> int:
        if not self._free:
            self._grow()
        number = self._free.pop()
        self.is_kept[number] = True
        self.position[number] = position
        self.fallback[number] = fallback
        self.num_longer[number] = 0
        self.last_use[number] = now
        self.interval[number] = interval
        return number

    def remove(self, number: int) -> None:
        self.is_kept[number] = False
        self._free.append(number)

    def use(self, number: int, now: int) -> None:
        """Takes note that a request continued from this checkpoint."""
        self.interval[number] = now - self.last_use[number]
        self.last_use[number] = now

    def inherit(self, number: int, dropped: int) -> None:
        """Hands over to another checkpoint: requests that would have used the dropped one will now use this one."""
        if self.last_use[dropped] > self.last_use[number]:
            self.last_use[number] = self.last_use[dropped]
            self.interval[number] = self.interval[dropped]

    def worst(self, blocks_freed: NDArray[np.int64], now: int) -> int:
        """The checkpoint to give up first; of equals the newest, which in a loop over sessions is needed last."""
        candidates = np.flatnonzero(self.is_kept & (blocks_freed > 0))
        if len(candidates) == 0:  # what is left is shared among checkpoints: giving one up frees the next
            candidates = np.flatnonzero(self.is_kept)
        age, interval = now - self.last_use[candidates], self.interval[candidates]
        wait = np.maximum(np.maximum(age, interval) - np.minimum(age, interval) / 2, 1)
        saved = (self.position - self.fallback)[candidates].astype(np.float64)
        saved[self.num_longer[candidates] == 1] *= BRANCH_CHANCE
        worth = saved / (np.maximum(blocks_freed[candidates], 0.5) * wait)
        equals = candidates[worth == worth.min()]
        return int(equals[np.argmax(self.last_use[equals])])

    def _grow(self) -> None:
        old = self.capacity
        for name in ("is_kept", "position", "fallback", "num_longer", "last_use", "interval"):
            values = getattr(self, name)
            setattr(self, name, np.concatenate([values, np.zeros_like(values)]))
        self._free = list(range(2 * old - 1, old - 1, -1))
