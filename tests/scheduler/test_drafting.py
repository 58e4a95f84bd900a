"""Drafts in the books: what they cost, what comes back, and who goes first where not everything fits."""

from collections.abc import Sequence

import pytest

from facet.scheduler.drafting import Draftable
from tests.eager_drafter import EagerDrafter
from tests.kv_cache.layouts import make_layout
from tests.scheduler.fake_runner import FakeEngine
from tests.scheduler.requests import EOS, VOCAB_SIZE, alone, make_engine, make_request, sample

both_orders = pytest.mark.parametrize("overlapped", [False, True])


class Scripted(EagerDrafter):
    """Drafts `num_drafts` tokens for everybody, of which the first `num_right` are right."""

    def __init__(self, num_drafts: int, num_right: int) -> None:
        self.max_num_drafts = num_drafts
        self.num_right = num_right
        self.asked: list[Draftable] = []

    def propose(self, requests: Sequence[Draftable]) -> dict[int, list[int]]:
        requests = self.draftable(requests)
        self.asked += requests
        return {request.request_number: self._guess(request) for request in requests}

    def _guess(self, request: Draftable) -> list[int]:
        tokens = [*request.prompt_token_ids, *request.output_token_ids]
        for place in range(self.max_num_drafts):
            right = sample(make_request("any", [1]), tokens)
            tokens.append(right if place < self.num_right else (right + 1) % VOCAB_SIZE)
        return tokens[-self.max_num_drafts :]


def num_blocks_held(engine: FakeEngine) -> int:
    return engine.scheduler.stats().cache.num_blocks_in_tables


@both_orders
@pytest.mark.parametrize("num_right", [0, 2, 5])
def test_a_step_brings_what_was_drafted_right_and_one_token_more(overlapped: bool, num_right: int) -> None:
    drafter = Scripted(5, num_right)
    engine = make_engine(make_layout((8, 4), (None, 10)), num_blocks=60, overlapped=overlapped, drafter=drafter)
    request = make_request("a", [1, 2, 3], max_tokens=61, ignore_eos=True)
    engine.submit(request)
    engine.run()
    assert engine.output_token_ids["a"] == alone(request, 256)[0]
    # The first token comes of the prompt; each further step brings the right drafts and one more.
    num_steps = -(-60 // (num_right + 1))
    assert engine.runner._last_step == 1 + num_steps
    assert engine.runner.num_drafts_accepted == 60 - num_steps
    counts = engine.scheduler.stats().drafts
    assert (counts.num_drafts, counts.num_accepted) == (engine.runner.num_drafts_computed, 60 - num_steps)
    assert sum(counts.num_accepted_by_place[:num_right]) == 60 - num_steps
    assert not any(counts.num_accepted_by_place[num_right:])


@both_orders
def test_blocks_taken_for_refused_drafts_come_back_at_once(overlapped: bool) -> None:
    """Blocks of 4: 7 drafts behind the token at position 16 reach two blocks beyond its own."""
    engine = make_engine(make_layout((8, 4), (None, 4)), num_blocks=60, overlapped=overlapped, drafter=Scripted(7, 0))
    engine.submit(make_request("a", range(16), max_tokens=20, ignore_eos=True))
    engine.step()
    if overlapped:
        engine.step()
    assert num_blocks_held(engine) == 4 + 4
    before = engine.runner.num_drafts_computed
    engine.step()
    in_flight = num_blocks_held(engine)
    if overlapped:
        assert in_flight == 6 + (6 - 2), "position 16 and its drafts; the window has left two blocks behind"
        engine.step()
    assert engine.runner.num_drafts_computed == before + 7
    assert num_blocks_held(engine) == 5 + 3, "17 tokens are computed"


@both_orders
def test_a_window_stays_where_the_accepted_tokens_need_it(overlapped: bool) -> None:
    """Were it moved on for drafts, the reads after their refusal would find nothing: the runner checks each."""
    engine = make_engine(
        make_layout((3, 1), (None, 2)), num_blocks=80, overlapped=overlapped, max_num_seqs=2, drafter=Scripted(9, 1)
    )
    for name in "ab":
        engine.submit(make_request(name, [ord(name) % 20] * 5, max_tokens=30, ignore_eos=True))
    engine.run()
    assert engine.runner.num_drafts_computed > 5 * engine.runner.num_drafts_accepted > 0


@both_orders
def test_what_follows_a_stop_is_dropped(overlapped: bool) -> None:
    request = make_request("a", [5, 1], max_tokens=40)
    expected, reason = alone(request, 256)
    assert reason == "stop"
    engine = make_engine(make_layout((None, 4)), num_blocks=60, overlapped=overlapped, drafter=Scripted(30, 30))
    engine.submit(request)
    engine.run()
    assert (engine.output_token_ids["a"], engine.finish_reasons["a"]) == (expected, "stop")
    assert expected[-1] == EOS


@both_orders
def test_the_next_turn_finds_only_accepted_tokens_in_the_cache(overlapped: bool) -> None:
    engine = make_engine(make_layout((8, 4), (None, 10)), num_blocks=90, overlapped=overlapped, drafter=Scripted(6, 2))
    engine.submit(make_request("a", range(20), max_tokens=21, ignore_eos=True))
    engine.run()
    said = engine.output_token_ids["a"]
    engine.submit(make_request("b", [*range(20), *said, 1, 2, 3], max_tokens=5, ignore_eos=True))
    engine.run()
    assert engine.num_cached_tokens["b"] == 40, "the last token was sampled and never computed"
    # Whoever continues as the refused drafts did shares nothing with them.
    wrong = [*range(20), *said[:3], (said[3] + 1) % VOCAB_SIZE, *said[4:]]
    engine.submit(make_request("c", wrong, max_tokens=5, ignore_eos=True))
    engine.run()
    assert engine.num_cached_tokens["c"] <= 23


def test_drafts_get_what_is_left_of_the_budget() -> None:
    engine = make_engine(make_layout((None, 8)), num_blocks=90, max_num_batched_tokens=10, drafter=Scripted(4, 0))
    for name in "abcd":
        engine.submit(make_request(name, [1, 2], max_tokens=40, ignore_eos=True))
    engine.step()
    schedule = engine.scheduler.plan(engine._drafter.propose(engine.scheduler.draftable()))
    assert sorted(schedule.entries.num_drafts.tolist()) == [0, 2, 4, 4]
    engine.submit(make_request("long", range(50), max_tokens=1))
    engine.step()
    assert engine.scheduler.stats().num_waiting == 1, "drafts took the budget of this step"
    engine.run()


def test_drafts_are_dropped_before_anyone_gives_way() -> None:
    """Blocks for all known tokens and not one more: drafting goes on only while it needs no block."""
    engine = make_engine(
        make_layout((None, 8)),
        num_blocks=1 + 2 * 3,
        max_num_seqs=2,
        enable_prefix_caching=False,
        drafter=Scripted(7, 0),
    )
    for name in "ab":
        engine.submit(make_request(name, [1] * 10, max_tokens=14, ignore_eos=True))
    engine.run()
    assert engine.runner.num_drafts_computed > 0
    assert engine.scheduler.stats().num_preemptions == 0


def test_nothing_is_drafted_beyond_the_last_token() -> None:
    drafter = Scripted(8, 8)
    engine = make_engine(make_layout((None, 8)), num_blocks=90, drafter=drafter)
    engine.submit(make_request("a", [1, 2], max_tokens=6, ignore_eos=True))
    engine.run()
    assert [asked.max_num_drafts for asked in drafter.asked] == [4]
    assert len(engine.output_token_ids["a"]) == 6
    assert engine.runner.num_tokens_computed == 2 + 5
