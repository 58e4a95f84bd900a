"""The prefix cache: which prefixes of sequences are still in memory, and in which blocks.

With windows, a prefix is not simply there or gone. To continue at position n a request needs the global blocks over
[0, n) but of the sliding ones only those over the window before n. Such a set of blocks is a *checkpoint* at n:

    global    [■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■]
    sliding                             [■■■■■]          one checkpoint at n: a whole prefix, one window
                                              n

Checkpoints are kept at the end of prompts and turns, sparsely inside long prompts, and where a second request turned
out to branch off (`Passage`). One whose sliding blocks reach back to the start serves every shorter position too.

A hit never ends inside a span of media that attends both ways: its rows are made together or not at all.

A hit may end inside a block: full blocks are shared, and the last, partly filled one is copied for the newcomer. Slots
once written never change, so the copy may be made while the owner still appends behind them.

Sequences are named by digest chains (`prefix_chain`); what to give up first is decided in `eviction`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from facet.kv_cache.accountant import block_range
from facet.kv_cache.block_pool import BlockPool, Blocks
from facet.kv_cache.eviction import EvictionOrder
from facet.kv_cache.prefix_chain import TOKENS_PER_LINK, PrefixChain
from facet.kv_cache.prefix_history import PrefixHistory
from facet.kv_layout import KVLayout
from facet.step import TableSlice


class HitBlocks(NamedTuple):
    """What a hit puts into one group's table, from entry `first` on."""

    first: int
    shared: Blocks
    copied: Blocks  # the partly filled last block, or none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixHit:
    """The first `position` tokens need not be computed."""

    position: int
    checkpoint: int
    blocks: tuple[HitBlocks, ...]  # per group


class Passage(NamedTuple):
    """What is known of a sequence when a request enters with it."""

    known_until: int  # an earlier request went the same way up to here
    interval: int  # ticks since it did; 0: none did


NEW_GROUND = Passage(0, 0)


@dataclass(slots=True, eq=False)
class Checkpoint:
    position: int
    digests: list[bytes]  # of the whole sequence; the first position // TOKENS_PER_LINK are this checkpoint's
    remainder: bytes
    tables: tuple[TableSlice, ...]
    fallback: int | None  # the next shorter checkpoint of the same sequence
    longer: set[int] = field(default_factory=set)  # those whose fallback this is

    @property
    def num_links(self) -> int:
        return self.position // TOKENS_PER_LINK

    @property
    def block_ids(self) -> Blocks:
        return np.concatenate([table.block_ids for table in self.tables])

    @property
    def reaches_start(self) -> bool:
        return all(table.first == 0 for table in self.tables)


class PrefixIndex:
    def __init__(self, layout: KVLayout, pool: BlockPool) -> None:
        self._layout = layout
        self._pool = pool
        self._order = EvictionOrder()
        self._checkpoints: dict[int, Checkpoint] = {}
        self._ending_at: dict[bytes, set[int]] = {}  # by the last digest of a checkpoint
        self._covering: dict[bytes, dict[int, None]] = {}  # by every digest, if it reaches back to the start
        self._roots: set[int] = set()  # checkpoints without a fallback
        self._history = PrefixHistory()
        self._now = 0  # in ticks: requests that have entered
        self._version = 0

    def __len__(self) -> int:
        return len(self._checkpoints)

    def match(self, chain: PrefixChain) -> PrefixHit | None:
        """The longest prefix of `chain` in memory. The last token is always left to compute, because its logits are
        needed.

        The answer is remembered in the chain until checkpoints change: a waiting request asks in every step.
        """
        if chain.last_match is None or chain.last_match[0] != self._version:
            chain.last_match = (self._version, self._find(chain, len(chain) - 1))
        hit: PrefixHit | None = chain.last_match[1]
        return hit

    def enter(self, chain: PrefixChain) -> Passage:
        """A request starts with this sequence. Returns how far earlier ones shared it, and how long ago."""
        self._now += 1
        last = self._history.last_passage(chain)
        self.remember(chain)
        return NEW_GROUND if last is None else Passage(last[0] * TOKENS_PER_LINK, self._now - last[1])

    def remember(self, chain: PrefixChain) -> None:
        """Records that a request had all of `chain`."""
        self._history.remember(chain, self._now)

    def use(self, hit: PrefixHit) -> None:
        self._order.use(hit.checkpoint, self._now)

    def plant(
        self, chain: PrefixChain, position: int, tables: tuple[TableSlice, ...], passage: Passage = NEW_GROUND
    ) -> None:
        """Keep a checkpoint at `position` of a sequence, if there is none yet."""
        assert chain.end_before_cut(position) == position, "half of a span that attends both ways is of no use"
        num_links = position // TOKENS_PER_LINK
        if num_links == 0:
            return
        fallback = self._longest_ending_on(chain, position)
        if fallback is not None and self._checkpoints[fallback].position == position:
            return
        if len(self) >= self._pool.num_blocks:
            self._drop(self._order.worst(self._pool.blocks_per_sole_checkpoint(self._order.capacity), self._now))
            fallback = self._longest_ending_on(chain, position)
        number = self._order.add(position=position, fallback=0, now=self._now, interval=passage.interval)
        checkpoint = Checkpoint(
            position=position,
            digests=chain.digests,
            remainder=chain.remainder(position),
            tables=tables,
            fallback=None,
        )
        self._checkpoints[number] = checkpoint
        self._pool.hold(checkpoint.block_ids, number)
        self._ending_at.setdefault(chain.digests[num_links - 1], set()).add(number)
        if checkpoint.reaches_start:
            for digest in chain.digests[:num_links]:
                self._covering.setdefault(digest, {})[number] = None
        self._set_fallback(number, fallback)
        if position < passage.known_until:  # only then can an earlier request have gone further
            for other in list(self._siblings(fallback)):
                if other != number and self._is_before(checkpoint, self._checkpoints[other]):
                    self._set_fallback(other, number)
        self._version += 1

    def evict(self, num_ready: int) -> None:
        """Give up checkpoints until the pool has `num_ready` ready blocks."""
        if self._pool.num_ready >= num_ready:
            return
        freed = self._pool.blocks_per_sole_checkpoint(self._order.capacity)
        while self._pool.num_ready < num_ready:
            assert self._checkpoints, f"{num_ready} blocks were promised, {self._pool.num_ready} are there"
            blocks = self._drop(self._order.worst(freed, self._now))
            sole = self._pool.is_cached(blocks) & (self._pool.checkpoint_refs[blocks] == 1)
            np.add.at(freed, self._pool.checkpoint_xor[blocks[sole]], 1)

    def clear(self) -> None:
        """Give up every checkpoint."""
        for number in list(self._checkpoints):
            self._drop(number)

    def discard(self, chain: PrefixChain) -> None:
        """Gives up every checkpoint of this sequence, because what was computed for it cannot be trusted."""
        for digest in chain.digests:
            for number in list(self._ending_at.get(digest, ())):
                self._drop(number)

    def check_integrity(self) -> None:
        """Checks that the maps, the tree and the pool agree on which checkpoints there are."""
        refs = np.zeros(self._pool.num_blocks, np.int32)
        covering: dict[bytes, set[int]] = {}
        for number, checkpoint in self._checkpoints.items():
            refs[checkpoint.block_ids] += 1
            assert self._order.is_kept[number]
            assert number in self._ending_at[checkpoint.digests[checkpoint.num_links - 1]]
            assert number in self._siblings(checkpoint.fallback)
            assert self._order.num_longer[number] == len(checkpoint.longer)
            if checkpoint.fallback is not None:
                assert self._checkpoints[checkpoint.fallback].position < checkpoint.position
            if checkpoint.reaches_start:
                for digest in checkpoint.digests[: checkpoint.num_links]:
                    covering.setdefault(digest, set()).add(number)
        assert (refs == self._pool.checkpoint_refs).all(), "a checkpoint's blocks are not counted"
        assert self._order.num_kept == len(self._checkpoints)
        assert {digest: set(numbers) for digest, numbers in self._covering.items()} == covering
        assert sum(map(len, self._ending_at.values())) == len(self._checkpoints)

    def _find(self, chain: PrefixChain, max_position: int) -> PrefixHit | None:
        for num_links in range(min(len(chain.digests), max_position // TOKENS_PER_LINK), 0, -1):
            digest = chain.digests[num_links - 1]
            best: tuple[int, int] | None = None
            for number in self._ending_at.get(digest, ()):
                position = self._checkpoints[number].position
                fits = position <= max_position and (best is None or position > best[0])
                if fits and self._checkpoints[number].remainder == chain.remainder(position):
                    best = (position, number)
            if best is None and digest in self._covering:
                best = (chain.end_before_cut(num_links * TOKENS_PER_LINK), next(reversed(self._covering[digest])))
            if best is not None and best[0] > 0:
                return self._hit(*best)
        return None

    def _hit(self, position: int, number: int) -> PrefixHit:
        blocks = []
        for group, table in zip(self._layout.groups, self._checkpoints[number].tables, strict=True):
            first, end = block_range(group, position, 0)
            num_full = position // group.tokens_per_block
            shared = table.block_ids[first - table.first : max(first, num_full) - table.first]
            copied = table.block_ids[max(first, num_full) - table.first : end - table.first]
            blocks.append(HitBlocks(first, shared, copied))
        return PrefixHit(position=position, checkpoint=number, blocks=tuple(blocks))

    def _longest_ending_on(self, chain: PrefixChain, position: int) -> int | None:
        for num_links in range(position // TOKENS_PER_LINK, 0, -1):
            found = [
                number
                for number in self._ending_at.get(chain.digests[num_links - 1], ())
                if self._checkpoints[number].position <= position
                and self._checkpoints[number].remainder == chain.remainder(self._checkpoints[number].position)
            ]
            if found:
                return max(found, key=lambda number: self._checkpoints[number].position)
        return None

    def _is_before(self, checkpoint: Checkpoint, other: Checkpoint) -> bool:
        """Whether `other` goes on from `checkpoint`, to the link: the few tokens after it do not matter here."""
        if other.position <= checkpoint.position:
            return False
        last_link = checkpoint.num_links - 1
        return other.digests[last_link] == checkpoint.digests[last_link]

    def _siblings(self, fallback: int | None) -> set[int]:
        return self._roots if fallback is None else self._checkpoints[fallback].longer

    def _set_fallback(self, number: int, fallback: int | None) -> None:
        checkpoint = self._checkpoints[number]
        self._unlink(number)
        checkpoint.fallback = fallback
        self._siblings(fallback).add(number)
        self._order.fallback[number] = 0 if fallback is None else self._checkpoints[fallback].position
        if fallback is not None:
            self._order.num_longer[fallback] += 1

    def _unlink(self, number: int) -> None:
        fallback = self._checkpoints[number].fallback
        siblings = self._siblings(fallback)
        if number in siblings:
            siblings.remove(number)
            if fallback is not None:
                self._order.num_longer[fallback] -= 1

    def _drop(self, number: int) -> Blocks:
        checkpoint = self._checkpoints[number]
        if not checkpoint.longer and checkpoint.fallback is not None:
            self._order.inherit(checkpoint.fallback, number)
        for other in list(checkpoint.longer):
            self._set_fallback(other, checkpoint.fallback)
        self._unlink(number)
        del self._checkpoints[number]
        last_digest = checkpoint.digests[checkpoint.num_links - 1]
        _remove(self._ending_at, last_digest, number)
        if checkpoint.reaches_start:
            for digest in checkpoint.digests[: checkpoint.num_links]:
                del self._covering[digest][number]
                if not self._covering[digest]:
                    del self._covering[digest]
        self._order.remove(number)
        blocks = checkpoint.block_ids
        self._pool.drop(blocks, number)
        self._version += 1
        return blocks


def _remove(sets: dict[bytes, set[int]], key: bytes, number: int) -> None:
    sets[key].remove(number)
    if not sets[key]:
        del sets[key]
