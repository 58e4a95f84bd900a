"""The accountant against a brute count of touched blocks, and the figures it was built for."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.errors import CapacityError
from facet.kv_cache.accountant import (
    block_range,
    blocks_for,
    longest_request,
    need_of,
    peak_blocks,
    require_fit,
    sequences_that_fit,
)
from facet.kv_layout import KVLayout
from tests.kv_cache.layouts import make_layout, shape_of_31b, shape_of_e4b


@st.composite
def layouts(draw: st.DrawFn) -> KVLayout:
    sliding = (draw(st.integers(1, 30)), draw(st.integers(1, 9)))
    return make_layout(sliding, (None, draw(st.integers(1, 20))))


def touched(window: int | None, tokens_per_block: int, num_computed: int, num_scheduled: int) -> set[int]:
    """Blocks of every token that some scheduled query sees or is, one by one."""
    blocks = set()
    for query in range(num_computed, num_computed + num_scheduled):
        oldest = 0 if window is None else max(0, query - window + 1)
        blocks |= {position // tokens_per_block for position in range(oldest, query + 1)}
    return blocks


def blocks_needed(layout: KVLayout, *, num_tokens: int, num_computed: int, num_in_flight: int) -> tuple[int, ...]:
    """Blocks per group a request of `num_tokens` must have while `num_in_flight` of them are being computed.

    Groups that forget are charged for what is visible now, groups that do not for the whole request: what it has not
    allocated yet is already promised to it.
    """
    needs = []
    for group in layout.groups:
        in_flight = num_in_flight if group.window is not None else max(num_tokens - num_computed, num_in_flight)
        first, end = block_range(group, num_computed, in_flight)
        needs.append(end - first)
    return tuple(needs)


@given(layouts(), st.integers(0, 80), st.integers(1, 40))
def test_a_step_needs_the_blocks_its_queries_see(layout: KVLayout, num_computed: int, num_scheduled: int) -> None:
    for group in layout.groups:
        first, end = block_range(group, num_computed, num_scheduled)
        assert set(range(first, end)) == touched(group.window, group.tokens_per_block, num_computed, num_scheduled)


@given(layouts(), st.integers(1, 120), st.integers(1, 50))
def test_the_peak_is_the_worst_that_any_way_of_chunking_meets(layout: KVLayout, num_tokens: int, chunk: int) -> None:
    steps = [
        blocks_needed(layout, num_tokens=num_tokens, num_computed=computed, num_in_flight=scheduled)
        for computed in range(num_tokens)
        for scheduled in range(1, min(chunk, num_tokens - computed) + 1)
    ]
    for worst, peak in zip(
        map(max, zip(*steps, strict=True)),
        peak_blocks(layout, num_tokens=num_tokens, num_in_flight=chunk),
        strict=True,
    ):
        # A request hardly longer than its window may never meet the worst alignment.
        assert worst <= peak <= worst + 1


def test_a_long_prompt_costs_its_window_and_its_chunk_in_sliding_layers() -> None:
    """Window 1024, chunk 8192, 16,001 tokens: charging the whole prompt would take 1,001 blocks of 16."""
    layout = make_layout((1024, 16), (None, 320))
    num_tokens, chunk = 16_001, 8_192
    ends = [*range(0, num_tokens, chunk), num_tokens]
    prefilling = [
        blocks_needed(layout, num_tokens=num_tokens, num_computed=start, num_in_flight=stop - start)
        for start, stop in pairwise(ends)
    ]
    decoding = [
        blocks_needed(layout, num_tokens=computed + 1, num_computed=computed, num_in_flight=1)
        for computed in range(num_tokens, num_tokens + 64)
    ]
    most_prefilling, most_decoding = max(need[0] for need in prefilling), max(need[0] for need in decoding)
    print(f"\nsliding blocks: {most_prefilling} prefilling, {most_decoding} decoding; global: {prefilling[0][1]}")
    assert most_prefilling <= 578
    assert most_decoding <= 66
    assert peak_blocks(layout, num_tokens=num_tokens, num_in_flight=chunk)[0] <= 578
    assert peak_blocks(layout, num_tokens=num_tokens, num_in_flight=1)[0] <= 66
    assert {need[1] for need in prefilling} == {51}, "the whole prompt is promised to it in global layers"


@given(layouts(), st.integers(2, 200), st.integers(1, 30))
def test_the_longest_request_fits_and_one_token_more_does_not(layout: KVLayout, num_blocks: int, chunk: int) -> None:
    longest = longest_request(layout, num_blocks, num_in_flight=chunk)
    assert longest is not None
    assert sum(peak_blocks(layout, num_tokens=longest, num_in_flight=chunk)) < num_blocks or longest == 0
    assert sum(peak_blocks(layout, num_tokens=longest + 1, num_in_flight=chunk)) >= num_blocks


def test_a_cache_without_global_layers_has_no_longest_request() -> None:
    assert longest_request(make_layout((8, 4)), 5) is None
    assert longest_request(make_layout((8, 4)), 3) == 8


@given(layouts(), st.integers(1, 20), st.integers(1, 100), st.integers(1, 64))
def test_a_pool_made_for_some_sequences_holds_just_those(
    layout: KVLayout, num_sequences: int, num_tokens: int, budget: int
) -> None:
    num_blocks = blocks_for(layout, num_sequences=num_sequences, num_tokens=num_tokens, max_num_batched_tokens=budget)
    for pool, expected in ((num_blocks, num_sequences), (num_blocks - 1, num_sequences - 1)):
        fit = sequences_that_fit(layout, pool, num_tokens=num_tokens, max_num_batched_tokens=budget)
        assert fit.num_sequences == expected


def test_capacity_of_a_31b_is_close_to_the_arithmetic_ideal() -> None:
    layout = shape_of_31b()
    assert [group.tokens_per_block for group in layout.groups] == [16, 320]
    num_blocks = int(67.7 * 2**30) // layout.page_bytes
    fit = sequences_that_fit(layout, num_blocks, num_tokens=131_072, max_num_batched_tokens=8_192)
    assert fit.blocks_per_sequence == (65, 410)
    assert fit.num_sequences == 10  # 11.7 would fit if nothing were in flight and no block were cut


def test_an_e4b_needs_its_window_and_whole_context() -> None:
    need = need_of(shape_of_e4b(), 10_000, num_tokens=32_768)
    assert need.blocks_per_group == (33, 820)
    assert need.fits


def test_a_pool_too_small_for_the_context_is_refused_with_the_numbers() -> None:
    layout = make_layout((8, 4), (None, 10))
    require_fit(layout, 14, max_model_len=100)
    with pytest.raises(CapacityError, match=r"100 tokens needs 13 .* but 12 are .* --max-model-len to 90 or less"):
        require_fit(layout, 13, max_model_len=100)
