"""Arithmetic over many seats and all groups, against that of one seat and one group."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from facet.kv_cache.accountant import block_range
from facet.kv_cache.block_tables import BlockTables, entries_between
from tests.kv_cache.layouts import make_layout

LAYOUT = make_layout((5, 4), (None, 10), (64, 16))
NUM_SEATS, MAX_MODEL_LEN = 6, 4096
NUM_GROUPS = len(LAYOUT.groups)
SEATS = st.lists(st.integers(0, NUM_SEATS - 1), unique=True, max_size=NUM_SEATS)
RANGES = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=NUM_SEATS, max_size=NUM_SEATS),
    min_size=NUM_GROUPS,
    max_size=NUM_GROUPS,
)


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 1000)), max_size=8))
def test_what_is_needed_is_what_a_step_touches(steps: list[tuple[int, int]]) -> None:
    tables = BlockTables(LAYOUT, max_num_seqs=NUM_SEATS, max_model_len=MAX_MODEL_LEN)
    num_computed = np.array([computed for computed, _ in steps], np.int64)
    num_tokens = np.array([computed + scheduled for computed, scheduled in steps], np.int64)
    firsts, ends = tables.first_needed(num_computed), tables.end_needed(num_tokens)
    for group, first, end in zip(LAYOUT.groups, firsts.tolist(), ends.tolist(), strict=True):
        assert list(zip(first, end, strict=True)) == [block_range(group, *step) for step in steps]


@given(SEATS, RANGES)
def test_entries_between(seats: list[int], ranges: list[list[tuple[int, int]]]) -> None:
    starts = np.array([[start for start, _ in of_group] for of_group in ranges])[:, seats]
    stops = np.array([[stop for _, stop in of_group] for of_group in ranges])[:, seats]
    groups, found_seats, indices = entries_between(np.array(seats, np.int64), starts, stops)
    assert list(zip(groups.tolist(), found_seats.tolist(), indices.tolist(), strict=True)) == [
        (group, seat, index)
        for group, of_group in enumerate(ranges)
        for seat in seats
        for index in range(*of_group[seat])
    ]


@given(SEATS, st.lists(st.integers(0, 2000), min_size=NUM_SEATS, max_size=NUM_SEATS))
def test_what_is_appended_is_there(seats: list[int], num_tokens: list[int]) -> None:
    tables = BlockTables(LAYOUT, max_num_seqs=NUM_SEATS, max_model_len=MAX_MODEL_LEN)
    own = np.array([num_tokens[seat] for seat in seats], np.int64)
    entries = tables.lacking(np.array(seats, np.int64), own)
    assert tables.num_lacking(np.array(seats, np.int64), own).sum() == len(entries.seats)
    blocks = np.arange(1, len(entries.seats) + 1, dtype=np.int32)
    tables.append(entries, blocks)
    assert tables.read(entries).tolist() == blocks.tolist()
    held = [tables.held(group, seat).tolist() for group in range(NUM_GROUPS) for seat in seats]
    assert [block for part in held for block in part] == blocks.tolist(), "a group's entries lie in another's"
    assert len(tables.lacking(np.array(seats, np.int64), own).seats) == 0
