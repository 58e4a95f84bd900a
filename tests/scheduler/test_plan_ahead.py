"""Steps launched ahead of the tokens and drafts before them: the runner checks every read, the books every block."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.chat.answer_grammar import json_schema_grammar
from facet.request import Request
from facet.scheduler.drafting import Draftable
from tests.kv_cache.layouts import make_layout
from tests.scheduler.fake_runner import FakeEngine
from tests.scheduler.requests import (
    VOCAB_SIZE,
    UnseenGuesser,
    alone,
    continuation,
    make_engine,
    make_request,
    sample,
)

MAX_MODEL_LEN = 90
LAYOUTS = (
    make_layout((6, 4), (None, 10)),
    make_layout((13, 5), (None, 7)),
    make_layout((1, 3), (None, 4)),
    make_layout((None, 6)),
    make_layout((9, 4)),
)


class Unseen(UnseenGuesser):
    """Guesses so many tokens, of which so many are right; all of them are verified."""

    def __init__(self, num_drafts: int, num_right: int) -> None:
        super().__init__(continuation, max_num_drafts=num_drafts)
        self.num_right = num_right

    def num_ahead(self, num_running: int) -> int:
        return self.max_num_drafts

    def num_unseen(self, requests: Sequence[Draftable]) -> dict[int, int]:
        return {request.request_number: self.max_num_drafts for request in requests}

    def propose(self, requests: Sequence[Draftable]) -> dict[int, list[int]]:
        return {}

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        guesses: list[int] = []
        for place in range(count):
            right = self._sample([*tokens, *guesses])
            guesses.append(right if place < self.num_right else (right + 1) % VOCAB_SIZE)
        return guesses


def make_engine_ahead(**options: Any) -> FakeEngine:
    options = {"num_blocks": 90, "overlapped": True, "max_num_rows_ahead": 100} | options
    return make_engine(make_layout((8, 4), (None, 10)), **options)


@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_all_steps_with_room_for_drafts_are_ahead(num_right: int) -> None:
    engine = make_engine_ahead(drafter=Unseen(3, num_right))
    requests = [make_request(name, [ord(name) % 20] * 5, max_tokens=41, ignore_eos=True) for name in "ab"]
    for request in requests:
        engine.submit(request)
    engine.run()
    for request in requests:
        assert engine.output_token_ids[request.request_id] == alone(request, 256)[0]
    runner = engine.runner
    assert runner.num_steps_ahead >= 40 // (1 + num_right) - 2
    assert runner._last_step - runner.num_steps_ahead <= 3, "the prompts, and where there is no room for drafts"
    counts = engine.scheduler.stats().drafts
    assert counts.num_accepted_by_place[num_right:] == (0,) * (3 - num_right)
    assert counts.num_accepted >= 2 * (40 - 40 // (1 + num_right) - num_right)


def test_blocks_of_refused_drafts_come_back_while_the_next_step_is_in_flight() -> None:
    """Blocks of 4: only what the step in flight may need is held beside the tokens that hold."""
    engine = make_engine(
        make_layout((None, 4)), num_blocks=60, overlapped=True, max_num_rows_ahead=100, drafter=Unseen(7, 0)
    )
    engine.submit(make_request("a", range(16), max_tokens=20, ignore_eos=True))
    held = []
    for _ in range(4):
        engine.step()
        held.append(engine.scheduler.stats().cache.num_blocks_in_tables)
    assert engine.runner.num_steps_ahead == 3
    # The prompt; positions 16 and 7 drafts; the same one further, since no draft was right; and again.
    assert held == [4, 6, 7, 7]


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": json_schema_grammar({"type": "string"})},
        {"needs_sampled_token_on_host": True},
    ],
)
def test_one_request_that_cannot_go_ahead_makes_all_wait(fields: dict[str, Any]) -> None:
    engine = make_engine_ahead(drafter=Unseen(2, 1))
    engine.submit(make_request("a", [1, 2, 3], max_tokens=30, ignore_eos=True))
    for _ in range(3):
        engine.step()
    num_ahead = engine.runner.num_steps_ahead
    assert num_ahead > 0
    engine.submit(make_request("b", [1, 2, 3, 4], max_tokens=6, ignore_eos=True, **fields))
    while "b" not in engine.finish_reasons:
        engine.step()
    assert engine.runner.num_steps_ahead == num_ahead
    engine.run()
    assert engine.runner.num_steps_ahead > num_ahead


def test_drafts_behind_the_end_are_not_counted() -> None:
    """The step launched before the end was known computes some for nothing."""
    engine = make_engine_ahead(drafter=Unseen(2, 2))
    request = make_request("a", [5, 1], max_tokens=40)
    expected, reason = alone(request, 256)
    assert reason == "stop"
    engine.submit(request)
    engine.run()
    assert engine.output_token_ids["a"] == expected
    counts = engine.scheduler.stats().drafts
    num_steps = -(-(len(expected) - 1) // 3)
    assert counts.num_drafts == 2 * num_steps < engine.runner.num_drafts_computed


def test_more_rows_than_may_be_ahead_wait() -> None:
    engine = make_engine_ahead(drafter=Unseen(2, 2), max_num_rows_ahead=2)
    for name in "ab":
        engine.submit(make_request(name, [1, 2, 3], max_tokens=30, ignore_eos=True))
    engine.run()
    assert engine.runner.num_steps_ahead == 0


@given(
    layout=st.sampled_from(LAYOUTS),
    num_blocks=st.integers(14, 40),
    max_num_seqs=st.integers(1, 4),
    max_num_drafts=st.sampled_from([1, 2, 3, 9]),
    max_in_flight=st.sampled_from([1, 1, 2]),
    ordered_on_one_stream=st.booleans(),
    seed=st.integers(0, 1000),
    submitted=st.lists(
        st.tuples(
            st.integers(1, 60),  # tokens of the prompt
            st.sampled_from([1, 2, 5, 20, None]),  # most tokens of the answer
            st.booleans(),  # whether it goes on behind the end
            st.integers(0, 8),  # steps before the next one
            st.sampled_from([None] * 4 + [0, 1, 5]),  # steps before it is cancelled, with a step in flight
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_whatever_is_accepted_every_read_is_right(
    layout: Any,
    max_num_drafts: int,
    seed: int,
    submitted: list[tuple[int, int | None, bool, int, int | None]],
    **options: Any,
) -> None:
    engine = make_engine(
        layout,
        max_model_len=MAX_MODEL_LEN,
        drafter=UnseenGuesser(continuation, max_num_drafts=max_num_drafts, seed=seed),
        max_num_rows_ahead=1000,
        **options,
    )
    requests: list[Request] = []
    cancelled: dict[int, str] = {}  # by step
    step = 0
    for index, (num_prompt, max_tokens, ignore_eos, num_steps, num_steps_left) in enumerate(submitted):
        prompt = [(5 * place + seed) % VOCAB_SIZE for place in range(num_prompt)]
        request = make_request(str(index), prompt, max_tokens=max_tokens, ignore_eos=ignore_eos)
        try:
            engine.submit(request)
        except ValueError:
            continue
        requests.append(request)
        if num_steps_left is not None:
            cancelled[step + num_steps_left] = request.request_id
        for _ in range(num_steps):
            engine.step(cancel_in_flight=cancelled.pop(step, None))
            step += 1
    engine.run()
    for request in requests:
        heard, reason = engine.output_token_ids[request.request_id], engine.finish_reasons[request.request_id]
        expected, expected_reason = alone(request, MAX_MODEL_LEN, sample)
        if reason == "abort":
            assert heard == expected[: len(heard)]
        else:
            assert (heard, reason) == (expected, expected_reason)
    stats = engine.scheduler.stats()
    assert stats.num_running == stats.cache.num_blocks_in_tables == 0
