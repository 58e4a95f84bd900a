"""The prefix index over a small pool: what is found, what is shared, what is copied, what falls back."""

import numpy as np
import pytest

from facet.kv_cache.accountant import block_range
from facet.kv_cache.block_pool import BlockPool
from facet.kv_cache.prefix_chain import PrefixChain
from facet.kv_cache.prefix_index import PrefixIndex
from facet.kv_layout import KVLayout
from facet.media_span import MediaSpan
from facet.step import TableSlice
from tests.kv_cache.layouts import make_layout
from tests.media_spans import spans_at

LAYOUT = make_layout((32, 16), (None, 40))


class Cache:
    """A pool, an index, and sequences written into the pool one after the other."""

    def __init__(self, layout: KVLayout = LAYOUT, num_blocks: int = 100) -> None:
        self.layout = layout
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(layout, self.pool)

    def write(self, num_tokens: int) -> list[np.ndarray]:
        return [self.pool.take(-(-num_tokens // group.tokens_per_block)) for group in self.layout.groups]

    def plant(self, chain: PrefixChain, position: int, tables: list[np.ndarray]) -> None:
        slices = []
        for group, table in zip(self.layout.groups, tables, strict=True):
            first, end = block_range(group, position, 0)
            slices.append(TableSlice(first, table[first:end]))
        self.index.plant(chain, position, tuple(slices))
        self.index.check_integrity()

    def end(self, tables: list[np.ndarray]) -> None:
        for table in tables:
            self.pool.release(table, fence=0)
        self.pool.check_integrity()

    def keep(self, token_ids: range, *positions: int) -> list[np.ndarray]:
        """Compute a sequence, keep checkpoints of it, and forget the rest."""
        chain = PrefixChain(token_ids)
        self.index.enter(chain)
        tables = self.write(len(token_ids))
        for position in positions:
            self.plant(chain, position, tables)
        self.end(tables)
        return tables

    def hit_position(self, *token_ids: int) -> int:
        hit = self.index.match(PrefixChain(token_ids))
        return 0 if hit is None else hit.position


def test_a_hit_brings_all_global_blocks_and_one_window() -> None:
    cache = Cache()
    sliding, global_ = cache.keep(range(160), 128)
    hit = cache.index.match(PrefixChain([*range(128), 999, 999]))
    assert hit is not None
    assert hit.position == 128
    first, shared, copied = hit.blocks[0]
    assert (first, shared.tolist(), copied.tolist()) == (6, sliding[6:8].tolist(), [])
    first, shared, copied = hit.blocks[1]
    assert (first, shared.tolist(), copied.tolist()) == (0, global_[:3].tolist(), [global_[3]])
    assert cache.pool.num_cached == 2 + 4, "nothing else is kept"


def test_a_hit_may_end_anywhere() -> None:
    cache = Cache()
    cache.keep(range(160), 131)
    assert cache.hit_position(*range(132)) == 131
    assert cache.hit_position(*range(131)) == 0, "the last token is computed anew, and no shorter window was kept"
    assert cache.hit_position(*range(130), 999, 999) == 0


def test_a_short_prefix_serves_every_shorter_one() -> None:
    """While the window reaches back to the start, nothing of it has been forgotten yet."""
    cache = Cache(make_layout((1024, 16), (None, 320)))
    cache.keep(range(600), 599)
    assert cache.hit_position(*range(500), *range(9000, 9100)) == 496, "a system prompt of 500 tokens"
    assert cache.hit_position(*range(599), 9000) == 599
    assert cache.hit_position(*range(15), 9000, 9000) == 0


def test_the_longest_hit_wins_and_the_next_shorter_one_is_the_fallback() -> None:
    cache = Cache()
    cache.keep(range(400), 64, 128, 256, 399)
    assert [cache.hit_position(*range(n)) for n in (400, 399, 257, 200, 65)] == [399, 256, 256, 128, 64]


def test_the_same_place_is_kept_once() -> None:
    cache = Cache()
    cache.keep(range(160), 128)
    num_cached = cache.pool.num_cached
    cache.keep(range(160), 128)
    assert (len(cache.index), cache.pool.num_cached) == (1, num_cached)


def test_eviction_frees_just_enough_and_falls_back() -> None:
    cache = Cache(num_blocks=40)
    cache.keep(range(400), 128, 256, 384)
    assert cache.hit_position(*range(400)) == 384
    lost = []
    while len(cache.index):
        cache.index.evict(cache.pool.num_ready + 1)
        cache.index.check_integrity()
        cache.pool.check_integrity()
        lost.append(cache.hit_position(*range(400)))
    assert len(lost) == 3
    assert lost == sorted(lost, reverse=True), "each loss leaves a shorter hit"
    assert cache.pool.num_ready == 39


def test_blocks_in_use_survive_the_eviction_of_their_checkpoint() -> None:
    cache = Cache(num_blocks=20)
    cache.keep(range(160), 128)
    hit = cache.index.match(PrefixChain(range(160)))
    assert hit is not None
    for group in hit.blocks:
        cache.pool.share(group.shared)
    cache.index.evict(14)
    assert len(cache.index) == 0
    assert cache.pool.num_in_tables == 5
    assert cache.pool.num_ready == 19 - 5
    with pytest.raises(AssertionError, match="15 blocks were promised, 14 are there"):
        cache.index.evict(15)


def test_a_distrusted_sequence_leaves_nothing_behind() -> None:
    cache = Cache()
    cache.keep(range(160), 64, 128)
    cache.keep(range(1000, 1100), 64)
    cache.index.discard(PrefixChain(range(150)))
    cache.index.check_integrity()
    assert cache.hit_position(*range(160)) == 0
    assert cache.hit_position(*range(1000, 1100)) == 64


def test_a_passage_tells_how_far_others_came_even_when_nothing_is_kept() -> None:
    cache = Cache()
    assert cache.index.enter(PrefixChain(range(100))) == (0, 0)
    cache.index.enter(PrefixChain(range(5000, 5100)))
    assert cache.index.enter(PrefixChain([*range(70), 1, 2, 3])) == (64, 2)


def test_a_checkpoint_between_two_others_becomes_the_fallback_of_the_longer() -> None:
    cache = Cache()
    cache.keep(range(400), 64, 384)
    chain = PrefixChain(range(400))
    passage = cache.index.enter(chain)
    tables = cache.write(400)
    slices = []
    for group, table in zip(LAYOUT.groups, tables, strict=True):
        first, end = block_range(group, 256, 0)
        slices.append(TableSlice(first, table[first:end]))
    cache.index.plant(chain, 256, tuple(slices), passage)
    cache.end(tables)
    cache.index.check_integrity()
    by_position = {checkpoint.position: checkpoint for checkpoint in cache.index._checkpoints.values()}
    numbers = {checkpoint.position: number for number, checkpoint in cache.index._checkpoints.items()}
    assert by_position[384].fallback == numbers[256]
    assert by_position[256].fallback == numbers[64]


def test_there_are_never_more_checkpoints_than_blocks() -> None:
    cache = Cache(make_layout((None, 1000)), num_blocks=4)
    cache.keep(range(900), 100, 200, 300, 400, 500, 600)
    assert len(cache.index) == 4
    cache.index.check_integrity()


class TestMedia:
    """Sequences of one token that stands for everything: only what lies behind it differs."""

    LENGTH = 96

    def chain(self, media: tuple[MediaSpan, ...], num_more: int = 4) -> PrefixChain:
        return PrefixChain([5] * self.LENGTH + list(range(num_more)), media=media)

    def hit_position(self, kept: tuple[MediaSpan, ...], asked: tuple[MediaSpan, ...], *positions: int) -> int:
        cache = Cache(make_layout((1000, 16), (None, 40)))  # windows reach back to the start: every prefix is covered
        kept_chain = self.chain(kept)
        cache.index.enter(kept_chain)
        tables = cache.write(len(kept_chain))
        for position in positions:
            cache.plant(kept_chain, position, tables)
        cache.end(tables)
        hit = cache.index.match(self.chain(asked, num_more=1))
        return 0 if hit is None else hit.position

    def test_the_same_content_is_found_and_another_is_not(self) -> None:
        picture, other = spans_at((20, 40)), spans_at((20, 40), key="other")
        assert self.hit_position(picture, picture, 96) == 96
        assert self.hit_position(picture, other, 96) == 16
        assert self.hit_position(picture, (), 96) == 16
        assert self.hit_position((), picture, 96) == 16
        assert self.hit_position(picture, spans_at((21, 41)), 96) == 16

    def test_a_hit_ends_inside_a_sound_but_not_inside_a_picture(self) -> None:
        """The second span differs: what is in common ends there, inside the first span or behind it."""
        for both_ways, expected in ((True, 30), (False, 48)):
            first = spans_at((30, 60), both_ways=both_ways)
            kept, asked = ((*first, *spans_at((60, 96), key=key)) for key in ("one", "two"))
            assert self.hit_position(kept, asked, 96) == expected

    def test_a_picture_at_the_very_beginning_is_found_whole_or_not_at_all(self) -> None:
        kept, asked = ((*spans_at((0, 50)), *spans_at((50, 96), key=key)) for key in ("one", "two"))
        assert self.hit_position(kept, asked, 96) == 0

    def test_half_a_picture_is_not_kept(self) -> None:
        with pytest.raises(AssertionError, match="half of a span"):
            self.hit_position(spans_at((20, 40)), spans_at((20, 40)), 30)
