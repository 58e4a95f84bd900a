import numpy as np

from facet.kv_cache.marks import Marks, mark_positions, prompt_name
from facet.kv_cache.prefix_chain import PrefixChain
from facet.kv_cache.prefix_index import NEW_GROUND, Passage
from tests.kv_cache.layouts import make_layout
from tests.media_spans import spans_at


def test_long_prompts_are_marked_sparsely() -> None:
    assert mark_positions(10_000, 1024, 0) == [1024, 2048, 4096, 8192, 9999]
    assert mark_positions(1025, 1024, 0) == [1024]
    assert mark_positions(100, None, 48) == [48, 99]
    assert mark_positions(100, None, 112) == [99], "the last token is computed by whoever comes"


def test_marks_come_due_as_they_are_passed() -> None:
    marks = Marks(make_layout((8, 4), (None, 4)), max_num_seqs=2)
    marks.set(1, PrefixChain(range(40)), num_computed=10, passage=Passage(20, 1))
    seats = np.array([0, 1])
    assert marks.due(seats, np.array([99, 15])) == []
    assert marks.due(seats, np.array([99, 33])) == [1]
    assert marks.pass_until(1, 33) == [16, 20, 32]
    assert marks.due(seats, np.array([99, 38])) == []
    assert marks.pass_until(1, 40) == [39]
    assert marks.due(seats, np.array([99, 999])) == []


def test_nothing_behind_an_end_is_kept() -> None:
    """As of a request that was put back, whose answer is to be computed again by itself."""
    marks = Marks(make_layout((8, 4), (None, 4)), max_num_seqs=1)
    marks.set(0, PrefixChain(range(40)), num_computed=0, passage=Passage(36, 1), end=24)
    assert marks.pass_until(0, 40) == [8, 16, 24]
    marked = marks.get(0)
    assert marked is not None
    assert marked.end == 24


def test_marks_do_not_cut_what_attends_both_ways() -> None:
    """16 and 32 lie inside of spans, and so does the last token but one; a sound may be cut."""
    marks = Marks(make_layout((8, 4), (None, 4)), max_num_seqs=1)
    media = (*spans_at((6, 9), both_ways=False), *spans_at((12, 20), (30, 40)))
    marks.set(0, PrefixChain(range(40), media=media), num_computed=0, passage=NEW_GROUND)
    assert marks.pass_until(0, 40) == [8, 12, 30]


def test_a_prompt_is_under_way_until_its_last_mark_or_until_it_is_given_up() -> None:
    marks = Marks(make_layout((8, 4), (None, 4)), max_num_seqs=3)
    chain = PrefixChain(range(40))
    name = prompt_name(chain)
    assert name is not None
    for seat in (0, 1):
        marks.set(seat, chain, num_computed=0, passage=NEW_GROUND)
    marks.pass_until(0, 38)
    assert marks.is_under_way(name)
    marks.pass_until(0, 39)
    assert marks.is_under_way(name), "the other seat still computes it"
    marks.clear(1)
    assert not marks.is_under_way(name)
    marks.clear(0)
    assert not marks.is_under_way(name)


def test_prompts_too_short_to_be_cached_have_no_name() -> None:
    assert prompt_name(PrefixChain(range(16))) is None
    assert prompt_name(PrefixChain(range(17))) is not None
