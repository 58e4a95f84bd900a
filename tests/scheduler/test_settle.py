"""How requests end, in both orders of the loop, and what is left behind."""

from collections.abc import Sequence
from typing import Any

import pytest

from facet.request import Request
from tests.kv_cache.layouts import make_layout
from tests.scheduler.fake_runner import FakeEngine
from tests.scheduler.requests import EOS, make_engine, make_request, sample

LAYOUT = make_layout((8, 4), (None, 10))
both_orders = pytest.mark.parametrize("overlapped", [False, True])


def counting(request: Request, token_ids: Sequence[int]) -> int:
    """Outputs 100, 101, ..., with the end-of-sequence token in fifth place."""
    num_outputs = len(token_ids) - len(request.prompt_token_ids)
    return EOS if num_outputs == 4 else 100 + num_outputs


def outputs_of(overlapped: bool, **fields: Any) -> tuple[list[int], str, FakeEngine]:
    engine = make_engine(LAYOUT, num_blocks=60, overlapped=overlapped, sample=counting)
    engine.submit(make_request("a", [1, 2, 3], **fields))
    engine.run()
    return engine.output_token_ids["a"], engine.finish_reasons["a"], engine


@both_orders
def test_an_end_token_ends_a_request(overlapped: bool) -> None:
    outputs, reason, engine = outputs_of(overlapped)
    assert (outputs, reason) == ([100, 101, 102, 103, EOS], "stop")
    num_discarded = 1 if overlapped else 0  # it was in flight when the end became known
    assert engine.runner.num_tokens_computed == 3 + 4 + num_discarded


@both_orders
def test_an_end_token_may_be_ignored(overlapped: bool) -> None:
    outputs, reason, _ = outputs_of(overlapped, ignore_eos=True, max_tokens=7)
    assert (outputs, reason) == ([100, 101, 102, 103, EOS, 105, 106], "length")


@both_orders
def test_a_stop_token_counts_from_min_tokens_on(overlapped: bool) -> None:
    assert outputs_of(overlapped, stop_token_ids=[101])[:2] == ([100, 101], "stop")
    outputs, reason, _ = outputs_of(overlapped, stop_token_ids=[101, 103], min_tokens=3)
    assert (outputs, reason) == ([100, 101, 102, 103], "stop")


@both_orders
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_nothing_is_computed_beyond_max_tokens(overlapped: bool, max_tokens: int) -> None:
    outputs, reason, engine = outputs_of(overlapped, max_tokens=max_tokens)
    assert (len(outputs), reason) == (max_tokens, "length")
    assert engine.runner.num_tokens_computed == 3 + max_tokens - 1


@both_orders
def test_the_context_is_filled_and_no_further(overlapped: bool) -> None:
    engine = make_engine(LAYOUT, num_blocks=60, max_model_len=40, overlapped=overlapped)
    engine.submit(make_request("a", [1] * 30, max_tokens=None, ignore_eos=True))
    engine.run()
    assert (len(engine.output_token_ids["a"]), engine.finish_reasons["a"]) == (10, "length")


def test_a_grammar_sees_each_token_before_the_next_is_computed() -> None:
    engine = make_engine(LAYOUT, num_blocks=60, overlapped=True, sample=counting)
    engine.submit(make_request("free", [1, 2], max_tokens=20, ignore_eos=True))
    engine.submit(make_request("bound", [3, 4], needs_sampled_token_on_host=True, max_tokens=20, ignore_eos=True))
    for _ in range(10):
        engine.step()
        for state in engine.scheduler.queues._running:
            num_pending = engine.scheduler.queues._seats.num_tokens[state.seat] - state.num_known
            assert num_pending == 1 if state.request.request_id == "free" else num_pending <= 1
    assert len(engine.output_token_ids["free"]) == 9
    assert len(engine.output_token_ids["bound"]) == 5, "it computes in every other step"
    engine.run()


@both_orders
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_request_can_be_cancelled_at_any_moment(overlapped: bool, in_flight: bool) -> None:
    for num_steps in range(16):
        engine = make_engine(LAYOUT, num_blocks=40, max_num_batched_tokens=16, overlapped=overlapped)
        for name in "ab":
            engine.submit(make_request(name, [ord(name)] * 26, max_tokens=10, ignore_eos=True))
        for _ in range(num_steps):
            engine.step()
        if in_flight:
            engine.step(cancel_in_flight="a")
        engine.cancel("a")
        engine.run()
        assert engine.finish_reasons["b"] == "length"
        assert engine.finish_reasons["a"] in {"abort", "length"}
        assert engine.scheduler.stats().cache.num_blocks_in_tables == 0


def test_cancelling_a_stranger_does_nothing() -> None:
    assert make_engine(LAYOUT, num_blocks=40).scheduler.cancel("nobody") is None


@both_orders
def test_results_of_a_request_that_left_are_not_given_to_its_namesake(overlapped: bool) -> None:
    engine = make_engine(LAYOUT, num_blocks=40, overlapped=overlapped, sample=counting)
    engine.submit(make_request("a", [1, 2, 3], max_tokens=9))
    for _ in range(3):
        engine.step()
    engine.cancel("a")
    engine.finish_reasons.clear()
    engine.submit(make_request("a", [4, 5], max_tokens=2))
    engine.run()
    assert engine.output_token_ids["a"] == [100, 101]


@both_orders
def test_a_request_without_finite_logits_ends_its_request_alone(overlapped: bool) -> None:
    def fail_for_a(request: Request, token_ids: Sequence[int]) -> int | None:
        is_third = len(token_ids) == len(request.prompt_token_ids) + 2
        return None if request.request_id == "a" and is_third else counting(request, token_ids)

    engine = make_engine(LAYOUT, num_blocks=60, overlapped=overlapped, sample=fail_for_a)
    for name in "ab":
        engine.submit(make_request(name, [ord(name)] * 40, max_tokens=6))
    engine.run()
    assert engine.output_token_ids["a"] == [100, 101]
    assert engine.finish_reasons == {"a": "error", "b": "stop"}

    for name in "ab":
        engine.submit(make_request(f"{name} again", [ord(name)] * 40, max_tokens=2))
    engine.run()
    assert engine.num_cached_tokens["a again"] == 0, "what it computed is not trusted"
    assert engine.num_cached_tokens["b again"] == 39


@both_orders
def test_a_token_sampled_before_a_preemption_is_not_lost(overlapped: bool) -> None:
    """Preempted while its last token is still on the device, a request waits for it before it returns."""
    engine = make_engine(LAYOUT, num_blocks=17, overlapped=overlapped, enable_prefix_caching=False)
    for index, name in enumerate("abc"):
        engine.submit(make_request(name, [index] * 18, max_tokens=50, ignore_eos=True, arrival_time=index))
    engine.run()
    assert engine.scheduler.stats().num_preemptions > 0
    for index, name in enumerate("abc"):
        tokens = [index] * 18
        for token_id in engine.output_token_ids[name]:
            assert token_id == sample(make_request(name, [0]), tokens)
            tokens.append(token_id)
        assert len(tokens) == 68
