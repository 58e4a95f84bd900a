"""The prefix cache as requests meet it: what they need not compute."""

from collections.abc import Sequence
from typing import Any

import pytest

from facet.kv_cache.accountant import blocks_for
from facet.kv_layout import KVLayout
from tests.kv_cache.layouts import make_layout, shape_of_31b
from tests.scheduler.fake_runner import FakeEngine
from tests.scheduler.requests import VOCAB_SIZE, make_engine, make_request

SHAPE_OF_31B = make_layout((1024, 16), (None, 320))
SHAPE_OF_E4B = make_layout((512, 16), (None, 40))


def text(seed: int, num_tokens: int) -> list[int]:
    return [(seed * 31 + index * index * 7 + index) % VOCAB_SIZE for index in range(num_tokens)]


def run_one(engine: FakeEngine, name: str, prompt: Sequence[int], **fields: Any) -> int:
    """Run a request to its end; returns how many prompt tokens were found."""
    engine.submit(make_request(name, prompt, **fields))
    engine.run()
    return engine.num_cached_tokens[name]


def make(layout: KVLayout = SHAPE_OF_31B, **options: Any) -> FakeEngine:
    defaults: dict[str, Any] = {"num_blocks": 2000, "max_model_len": 16_384, "max_num_batched_tokens": 2048}
    return make_engine(layout, **{**defaults, **options})


@pytest.mark.parametrize("layout", [SHAPE_OF_31B, SHAPE_OF_E4B])
@pytest.mark.parametrize("overlapped", [False, True])
def test_a_short_system_prompt_is_reused_though_a_global_block_is_larger(layout: KVLayout, overlapped: bool) -> None:
    engine = make(layout, overlapped=overlapped)
    system = text(1, 500)
    assert run_one(engine, "a", system + text(2, 40)) == 0
    assert run_one(engine, "b", system + text(3, 40)) == 496


def test_the_same_prompt_again_costs_one_token() -> None:
    engine = make()
    prompt = text(1, 5000)
    assert run_one(engine, "a", prompt) == 0
    num_computed = engine.runner.num_tokens_computed
    assert run_one(engine, "b", prompt, max_tokens=1) == 4999
    assert engine.runner.num_tokens_computed == num_computed + 1


def test_a_chat_goes_on_where_its_last_turn_ended() -> None:
    engine = make(overlapped=True)
    chat = text(1, 3000)
    run_one(engine, "turn 1", chat, max_tokens=20, ignore_eos=True)
    chat += engine.output_token_ids["turn 1"]
    assert run_one(engine, "turn 2", chat + text(2, 50)) >= 3019


def test_an_edited_reply_still_finds_the_prompt_before_it() -> None:
    engine = make()
    chat = text(1, 3000)
    run_one(engine, "turn 1", chat, max_tokens=20, ignore_eos=True)
    assert run_one(engine, "turn 2", chat + text(5, 60)) == 2999


def test_the_second_request_that_branches_off_leaves_a_checkpoint_for_the_third() -> None:
    engine = make()
    shared = text(1, 3000)
    assert run_one(engine, "a", shared + text(2, 1500)) == 0
    assert run_one(engine, "b", shared + text(3, 1500)) == 2048, "a sparse checkpoint"
    assert run_one(engine, "c", shared + text(4, 1500)) == 2992


def test_requests_that_want_prompt_logits_compute_everything() -> None:
    engine = make()
    prompt = text(1, 600)
    run_one(engine, "a", prompt)
    assert run_one(engine, "b", prompt, prompt_logprobs=1) == 0
    assert engine.prompt_logprobs["b"] == list(range(599))


def test_salts_are_kept_apart() -> None:
    engine = make()
    prompt = text(1, 600)
    run_one(engine, "a", prompt, cache_salt="one")
    assert run_one(engine, "b", prompt, cache_salt="other") == 0
    assert run_one(engine, "c", prompt, cache_salt="one") == 599


def test_without_the_cache_nothing_is_found_or_kept() -> None:
    engine = make(enable_prefix_caching=False)
    prompt = text(1, 600)
    run_one(engine, "a", prompt)
    assert run_one(engine, "b", prompt) == 0
    assert engine.scheduler.stats().cache.num_blocks_cached == 0


def test_samples_of_one_prompt_compute_it_once() -> None:
    """They arrive together; all but the first wait a step and find it."""
    engine = make(max_num_seqs=8)
    prompt = text(1, 600)
    for index in range(6):
        engine.submit(make_request(str(index), prompt, max_tokens=4, ignore_eos=True))
    engine.run()
    assert engine.runner.num_tokens_computed == 600 + 5 * 1 + 6 * 3
    assert engine.runner.max_num_requests_in_a_step == 6


def test_a_running_request_shares_what_it_is_still_appending_to() -> None:
    """The newcomer gets a copy of the half-filled blocks; both go on writing behind."""
    engine = make(max_num_seqs=2)
    prompt = text(1, 700)
    engine.submit(make_request("a", prompt, max_tokens=60, ignore_eos=True))
    for _ in range(5):
        engine.step()
    engine.submit(make_request("b", [*prompt, 5], max_tokens=60, ignore_eos=True))
    engine.run()
    assert engine.num_cached_tokens["b"] == 699


def test_cached_blocks_never_stand_in_the_way() -> None:
    """One request after the other, each as large as the pool allows."""
    engine = make(num_blocks=120, max_model_len=8192)
    for index in range(4):
        assert run_one(engine, str(index), text(index, 8000), max_tokens=2) == 0


def test_a_hit_saves_as_much_after_a_preemption() -> None:
    layout = make_layout((8, 4), (None, 10))
    engine = make_engine(layout, num_blocks=24, overlapped=True)
    for index in range(2):
        engine.submit(make_request(str(index), text(index, 40), max_tokens=100, ignore_eos=True, arrival_time=index))
    engine.run()
    assert engine.scheduler.stats().num_preemptions > 0
    assert set(engine.finish_reasons.values()) == {"length"}


def test_four_sessions_of_65k_tokens_run_together_on_a_31b() -> None:
    """The pool holds what four such sequences truly need and one step in flight, not a block more."""
    layout, num_prompt, num_outputs, budget = shape_of_31b(), 65_536, 40, 8_192
    num_tokens = num_prompt + num_outputs
    num_blocks = blocks_for(layout, num_sequences=4, num_tokens=num_tokens, max_num_batched_tokens=budget)
    engine = make_engine(
        layout,
        num_blocks=num_blocks,
        max_num_batched_tokens=budget,
        max_model_len=num_tokens,
        overlapped=True,
    )
    for index in range(4):
        engine.submit(make_request(str(index), text(index, num_prompt), max_tokens=num_outputs, ignore_eos=True))
    num_steps = engine.run()
    whole_prompts = 4 * sum(-(-num_prompt // group.tokens_per_block) for group in layout.groups)
    print(f"\n{num_blocks} blocks in {num_steps} steps; charging whole prompts would take {whole_prompts}")
    assert engine.runner.max_num_requests_in_a_step == 4
    assert engine.scheduler.stats().num_preemptions == 0
    assert num_blocks < whole_prompts / 8


def test_blocks_that_leave_one_window_and_enter_another_are_counted_once() -> None:
    """A block comes back from a moving window in the very step in which a newcomer's hit claims it."""
    layout = make_layout((8, 4))
    prompt = text(1, 40)
    for num_blocks in range(8, 20):
        for num_steps in range(1, 9):
            engine = make_engine(layout, num_blocks=num_blocks, max_num_batched_tokens=64)
            engine.submit(make_request("a", prompt, max_tokens=30, ignore_eos=True))
            for _ in range(num_steps):
                engine.step()
            engine.submit(make_request("b", [*prompt, *text(2, 20)], max_tokens=4, ignore_eos=True))
            engine.run()


def test_a_block_is_copied_before_anybody_may_write_it() -> None:
    """The step that copies may be in flight when the checkpoint is evicted and the block given away."""
    engine = make(ordered_on_one_stream=False, overlapped=True)
    prompt = text(1, 700)
    run_one(engine, "a", prompt, max_tokens=1)
    engine.submit(make_request("b", prompt))
    plan = engine.scheduler.commit(engine.scheduler.plan())
    pool = engine.scheduler.kv_cache._pool
    assert len(plan.page_copies) == 2
    engine.scheduler.reset_prefix_cache()
    num_ready = pool.num_ready
    engine.scheduler.kv_cache.view()
    assert pool.num_ready == num_ready, "the copy has not been made yet"
    engine.scheduler.kv_cache.retire(plan.step)
    engine.scheduler.kv_cache.view()
    assert pool.num_ready == num_ready + 2
