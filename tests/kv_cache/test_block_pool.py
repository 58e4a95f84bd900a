"""Random histories of a pool beside a plain model of who holds what."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from facet.kv_cache.block_pool import BlockPool, Blocks
from facet.step import SCRATCH_BLOCK


def blocks_of(numbers: list[int]) -> Blocks:
    return np.array(numbers, np.int32)


class PoolHistory(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(2, 12))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.tables: Counter[int] = Counter()
        self.checkpoints: dict[int, list[int]] = {}
        self.fence: Counter[int] = Counter()
        self.step = 1
        self.was_ready = self.ready()
        self.freed: set[int] = set()

    def is_held(self, block: int) -> bool:
        return self.tables[block] > 0 or any(block in blocks for blocks in self.checkpoints.values())

    def ready(self) -> set[int]:
        blocks = range(SCRATCH_BLOCK + 1, self.pool.num_blocks)
        return {b for b in blocks if not self.is_held(b) and self.fence[b] <= self.pool.horizon}

    def held(self) -> list[int]:
        return [block for block in range(self.pool.num_blocks) if self.is_held(block)]

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.pool.num_ready))
        for block in self.pool.take(count).tolist():
            assert not self.is_held(block), "a block was given away twice"
            assert block != SCRATCH_BLOCK
            assert self.fence[block] <= self.pool.horizon, "a step in flight may still touch this block"
            self.tables[block] += 1

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.held()), unique=True))
        self.pool.share(blocks_of(blocks))
        self.tables.update(blocks)

    @precondition(lambda self: self.tables.total() > 0)
    @rule(data=st.data(), late=st.integers(0, 1))
    def release(self, data: st.DataObject, late: int) -> None:
        held = list(self.tables.elements())
        picks = data.draw(st.lists(st.integers(0, len(held) - 1), unique=True, max_size=6))
        blocks = [held[pick] for pick in picks]  # a block with two holders may be named twice
        self.pool.release(blocks_of(blocks), fence=self.step - 1 + late)
        self.tables.subtract(blocks)
        for block in blocks:
            self.fence[block] = max(self.fence[block], self.step - 1 + late)

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.held()), unique=True, min_size=1))
        number = next(number for number in range(99) if number not in self.checkpoints)
        self.pool.hold(blocks_of(blocks), number)
        self.checkpoints[number] = blocks

    @precondition(lambda self: self.checkpoints)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.checkpoints)))
        alone = self.pool.blocks_per_sole_checkpoint(number + 1)[number]
        num_ready = self.pool.num_ready
        self.pool.drop(blocks_of(self.checkpoints.pop(number)), number)
        assert self.pool.num_ready == num_ready + alone

    @rule(lag=st.integers(0, 2))
    def next_step(self, lag: int) -> None:
        self.step += 1
        self.pool.advance_horizon(self.step - 1 - lag)

    @rule()
    def collect(self) -> None:
        assert set(self.pool.collect_freed().tolist()) == self.freed
        self.freed.clear()

    @invariant()
    def every_block_is_where_it_should_be(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        kept = {block for blocks in self.checkpoints.values() for block in blocks}
        passed = [block for block in range(1, self.pool.num_blocks) if self.fence[block] <= self.pool.horizon]
        assert self.pool.num_in_tables == sum(count > 0 for count in self.tables.values())
        assert self.pool.num_cached == sum(block in kept and self.tables[block] == 0 for block in passed)
        assert self.pool.num_ready == len(self.ready())
        self.freed |= self.ready() - self.was_ready
        self.was_ready = self.ready()


PoolHistory.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestPoolHistory = PoolHistory.TestCase


def test_a_block_is_not_written_while_a_step_may_touch_it() -> None:
    pool = BlockPool(2)
    block = pool.take(1)
    pool.release(block, fence=7)
    pool.advance_horizon(6)
    assert pool.num_ready == 0
    pool.advance_horizon(7)
    assert pool.take(1) == block


def test_an_earlier_fence_does_not_lift_a_later_one() -> None:
    """A copy reads a block in step 8; a table that also held it lets go under fence 7."""
    pool = BlockPool(2)
    block = pool.take(1)
    pool.share(block)
    pool.release(block, fence=8)
    pool.advance_horizon(7)
    pool.release(block, fence=7)
    assert pool.num_ready == 0
    pool.advance_horizon(8)
    assert pool.num_ready == 1


def test_freed_blocks_are_reported_once() -> None:
    pool = BlockPool(4)
    blocks = pool.take(2)
    pool.release(blocks, fence=0)
    assert sorted(pool.collect_freed()) == sorted(blocks)
    assert len(pool.collect_freed()) == 0


def test_a_pool_without_room_for_a_request_is_refused() -> None:
    with pytest.raises(ValueError, match="scratch block"):
        BlockPool(1)


def test_taking_more_than_is_ready_is_our_own_fault() -> None:
    with pytest.raises(AssertionError, match="asked for 4 blocks, 3 are ready"):
        BlockPool(4).take(4)
