"""Decisions, seen through the engine they steer: who computes, who enters, who gives way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.errors import CapacityError, ConfigError, RequestError
from facet.kv_cache.accountant import blocks_for
from facet.scheduler.admission import admit, still_to_allocate
from facet.scheduler.encoding import EncoderBooks, StepEncoding
from facet.scheduler.limits import Limits
from facet.scheduler.plan import share_budget
from facet.scheduler.step_cost import NO_COST
from facet.scheduler.time_left import TimeLeft
from tests.kv_cache.layouts import make_layout
from tests.scheduler.fake_runner import FakeEngine
from tests.scheduler.requests import make_engine, make_request

LAYOUT = make_layout((8, 4), (None, 10))


def running(engine: FakeEngine) -> list[str]:
    return [state.request.request_id for state in engine.scheduler.queues._running]


def waiting(engine: FakeEngine) -> list[str]:
    return [state.request.request_id for state in engine.scheduler.queues._waiting]


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 100))
def test_single_tokens_are_free_and_the_budget_is_spent_in_order(wanted: list[int], budget: int) -> None:
    scheduled, left = share_budget(np.array(wanted, np.int64), budget)
    expected = []
    for count in wanted:
        expected.append(1 if count == 1 else min(count, budget))
        budget -= 0 if count == 1 else expected[-1]
    assert scheduled.tolist() == expected
    assert left == budget


def test_a_plan_changes_nothing() -> None:
    engine = make_engine(LAYOUT, num_blocks=60)
    for index in range(3):
        engine.submit(make_request(str(index), range(index + 1, 20), max_tokens=8, ignore_eos=True))
    engine.step()
    engine.submit(make_request("late", range(30, 50)))
    one, other = engine.scheduler.plan(), engine.scheduler.plan()
    assert one.entries.seats.tolist() == other.entries.seats.tolist()
    assert one.entries.num_scheduled.tolist() == other.entries.num_scheduled.tolist()
    assert [entrant.seat for entrant in one.entrants] == [entrant.seat for entrant in other.entrants]
    engine.scheduler.check_integrity()
    engine.run()


def test_a_long_prompt_is_computed_beside_decoding_requests() -> None:
    engine = make_engine(LAYOUT, num_blocks=100, max_num_batched_tokens=16)
    engine.submit(make_request("short", [1, 2, 3], max_tokens=30, ignore_eos=True))
    engine.step()
    engine.submit(make_request("long", [index % 5 for index in range(100)], max_tokens=1, priority=-1))
    for _ in range(7):
        schedule = engine.scheduler.plan()
        assert sorted(schedule.entries.num_scheduled.tolist()) in ([1, 16], [1, 4])
        engine.step()
    assert "long" in engine.finish_reasons
    assert len(engine.output_token_ids["short"]) == 8


@pytest.mark.parametrize(("heeds_priority", "expected"), [(True, ["d", "c", "b", "a"]), (False, ["a", "c", "b", "d"])])
def test_lower_priority_numbers_and_earlier_arrivals_go_first(heeds_priority: bool, expected: list[str]) -> None:
    engine = make_engine(LAYOUT, num_blocks=100, max_num_seqs=1, heeds_priority=heeds_priority)
    for name, priority, arrival in (("a", 1, 0.0), ("b", 0, 2.0), ("c", 0, 1.0), ("d", -1, 3.0)):
        engine.submit(make_request(name, [1, 2, 3], max_tokens=2, priority=priority, arrival_time=arrival))
    engine.run()
    assert list(engine.finish_reasons) == expected


def test_the_head_of_the_line_is_not_overtaken_for_memory() -> None:
    engine = make_engine(LAYOUT, num_blocks=16)
    engine.submit(make_request("first", [1] * 50, max_tokens=20, ignore_eos=True))
    engine.step()
    engine.submit(make_request("too big for now", [2] * 60, max_tokens=1))
    engine.submit(make_request("would fit", [3] * 4, max_tokens=1))
    engine.step()
    assert running(engine) == ["first"]
    assert waiting(engine) == ["too big for now", "would fit"]
    engine.run()
    assert engine.scheduler.stats().num_preemptions == 0


def test_when_memory_runs_out_the_last_in_line_gives_way_and_comes_back_first() -> None:
    engine = make_engine(LAYOUT, num_blocks=22, max_num_seqs=3, enable_prefix_caching=False)
    names = ["a", "b", "c"]
    for index, name in enumerate(names):
        engine.submit(make_request(name, [index] * 20, max_tokens=60, ignore_eos=True, arrival_time=index))
    engine.step()
    assert running(engine) == names
    while len(running(engine)) == 3:
        engine.step()
    assert running(engine) == ["a", "b"]
    engine.submit(make_request("newcomer", [9] * 5, max_tokens=2, arrival_time=9.0))
    assert waiting(engine) == ["c", "newcomer"]
    while len(running(engine)) == 2:
        engine.step()
    assert running(engine) == ["a"], "the first in line is never preempted"
    assert waiting(engine) == ["b", "c", "newcomer"]
    engine.run()
    assert {engine.finish_reasons[name] for name in names} == {"length"}
    assert engine.scheduler.stats().num_preemptions >= 2


def test_no_more_give_way_than_needed_when_freed_blocks_come_back_late() -> None:
    """A step in flight may still touch the blocks of who was preempted: the first in line waits for them."""
    engine = make_engine(
        LAYOUT, num_blocks=24, max_num_seqs=3, overlapped=True, ordered_on_one_stream=False, enable_prefix_caching=False
    )
    for index, name in enumerate("abc"):
        engine.submit(make_request(name, [index] * 20, max_tokens=60, ignore_eos=True, arrival_time=index))
    while engine.scheduler.stats().num_preemptions == 0:
        engine.step()
    for _ in range(3):
        assert running(engine) == ["a", "b"]
        engine.step()
    engine.run()


def test_memory_is_kept_for_prompts_that_have_begun() -> None:
    engine = make_engine(LAYOUT, num_blocks=40, max_num_batched_tokens=16)
    engine.submit(make_request("a", [index % 5 for index in range(90)]))
    engine.step()
    queues, cache, limits = engine.scheduler.queues.view(), engine.scheduler.kv_cache.view(), engine.scheduler.limits
    # After this step it has computed 32 tokens in 4 global blocks and holds 6 sliding ones, of 7 it may come to need.
    scheduled = np.array([16])
    assert still_to_allocate(queues, cache, limits, scheduled) == (9 - 4) + (7 - 6)
    assert still_to_allocate(queues, cache, limits, np.array([74])) == 0, "nothing is left to compute"

    engine.submit(make_request("b", [1] * 10))  # one global block and three sliding ones
    roomy = Limits(max_num_batched_tokens=32, max_num_seqs=4, max_model_len=256)
    promised = still_to_allocate(queues, cache, roomy, scheduled)
    nothing = StepEncoding(EncoderBooks(0), (), max_num_encoded_rows=0)
    time = TimeLeft(None, NO_COST, scheduled)
    assert admit(queues, cache, roomy, nothing, time, scheduled, budget=16, num_available=promised + 3) == []
    assert len(admit(queues, cache, roomy, nothing, time, scheduled, budget=16, num_available=promised + 4)) == 1


def test_what_is_shared_with_those_who_stay_is_not_freed_by_who_leaves() -> None:
    prompt = [index % 5 for index in range(40)]
    for num_blocks in range(14, 26):
        engine = make_engine(LAYOUT, num_blocks=num_blocks, max_num_seqs=3)
        for index in range(3):
            engine.submit(
                make_request(str(index), [*prompt, index], max_tokens=40, ignore_eos=True, arrival_time=index)
            )
        engine.run()
        assert set(engine.finish_reasons.values()) == {"length"}
        if num_blocks == 16:
            assert engine.scheduler.stats().num_preemptions > 0


def test_a_preempted_request_waits_for_the_token_it_sampled_last() -> None:
    """With two steps in flight that token is still unknown when there is room again."""
    engine = make_engine(LAYOUT, num_blocks=21, max_num_batched_tokens=16, max_in_flight=2, enable_prefix_caching=False)
    engine.submit(make_request("older", [1] * 40, max_tokens=40, ignore_eos=True))
    engine.submit(make_request("younger", [2] * 40, max_tokens=40, ignore_eos=True, arrival_time=1.0))
    while engine.scheduler.stats().num_preemptions == 0:
        engine.step()
    engine.cancel("older")
    (state,) = engine.scheduler.queues._waiting
    assert state.num_pending > 0
    assert engine.scheduler.plan().is_empty
    engine.run()
    assert len(engine.output_token_ids["younger"]) == 40


def test_a_request_starts_only_when_all_of_it_fits() -> None:
    """Not when its first chunk does: then two long prompts would meet halfway with nowhere to go."""
    engine = make_engine(LAYOUT, num_blocks=20, max_num_batched_tokens=16, enable_prefix_caching=False)
    for name in "ab":
        engine.submit(make_request(name, [1] * 90, max_tokens=1))
    engine.step()
    assert (running(engine), waiting(engine)) == (["a"], ["b"])
    engine.run()
    assert engine.scheduler.stats().num_preemptions == 0


def test_a_prompt_larger_than_its_chunk_allows_is_computed_in_smaller_steps() -> None:
    """Alone it fits, but not with a whole budget of tokens in flight."""
    layout = make_layout((8, 4), (None, 40))
    engine = make_engine(layout, num_blocks=8, max_num_batched_tokens=64)
    engine.submit(make_request("a", [index % 7 for index in range(120)], max_tokens=3, ignore_eos=True))
    engine.run()
    assert engine.finish_reasons == {"a": "length"}


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    engine = make_engine(LAYOUT, num_blocks=13)
    with pytest.raises(CapacityError, match=r"grow to 120 tokens .* needs 15 cache blocks, .* are 12, .* 90 tokens"):
        engine.submit(make_request("a", [1] * 20, max_tokens=100))
    assert not engine.scheduler.has_requests
    engine.submit(make_request("a", [1] * 20, max_tokens=60))
    engine.run()


def test_what_exceeds_the_context_is_refused_with_the_numbers() -> None:
    engine = make_engine(LAYOUT, num_blocks=60, max_model_len=100)
    with pytest.raises(
        RequestError, match=r"has 70 tokens and 31 more .* context length is 100.* --max-model-len 101"
    ) as error:
        engine.submit(make_request("a", [1] * 70, max_tokens=31))
    assert error.value.field == "max_tokens"
    with pytest.raises(RequestError, match="has 100 tokens and 1 more") as error:
        engine.submit(make_request("a", [1] * 100, max_tokens=None))
    assert error.value.field == "prompt"
    with pytest.raises(RequestError, match="prompt is empty"):
        engine.submit(make_request("a", []))


def test_an_id_may_come_again_but_not_twice_at_once() -> None:
    engine = make_engine(LAYOUT, num_blocks=60)
    engine.submit(make_request("a", [1, 2, 3]))
    with pytest.raises(RequestError, match="'a' is still running"):
        engine.submit(make_request("a", [4, 5, 6]))
    engine.run()
    engine.finish_reasons.clear()
    engine.submit(make_request("a", [4, 5, 6]))
    engine.run()


def test_limits_must_leave_room_for_a_request() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs is 0"):
        Limits(max_num_batched_tokens=1, max_num_seqs=0, max_model_len=1)


def test_requests_that_fit_by_true_need_run_together() -> None:
    """The pool is made for four sequences in their steady state and one full step in flight."""
    num_tokens = 200
    num_blocks = blocks_for(LAYOUT, num_sequences=4, num_tokens=num_tokens, max_num_batched_tokens=64)
    engine = make_engine(LAYOUT, num_blocks=num_blocks, max_num_batched_tokens=64, enable_prefix_caching=False)
    for index in range(4):
        engine.submit(make_request(str(index), [index] * 150, max_tokens=50, ignore_eos=True))
    engine.run()
    assert engine.runner.max_num_requests_in_a_step == 4
    assert engine.scheduler.stats().num_preemptions == 0


@pytest.mark.parametrize("overlapped", [False, True])
def test_prompt_logits_are_computed_once_also_across_a_preemption(overlapped: bool) -> None:
    engine = make_engine(LAYOUT, num_blocks=16, max_num_batched_tokens=8, overlapped=overlapped)
    engine.submit(make_request("older", [1] * 20, max_tokens=60, ignore_eos=True))
    engine.step()
    engine.submit(
        make_request("younger", [2] * 30, max_tokens=60, ignore_eos=True, prompt_logprobs=1, arrival_time=1.0)
    )
    engine.run()
    assert engine.scheduler.stats().num_preemptions > 0
    assert engine.prompt_logprobs["younger"] == list(range(29))
