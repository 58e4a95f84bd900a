"""Prompts beside running answers: costs are learned from steps, and chunks are as long as a step's time allows."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from facet.request import Request
from facet.scheduler.limits import Limits
from facet.scheduler.step_cost import NO_COST, CostLearner, StepCost
from facet.scheduler.time_left import AIM, LEAST_ROWS, TimeLeft
from facet.step import EncoderWork, NewBlocks, StepPlan
from tests.kv_cache.layouts import make_layout, shape_of_31b
from tests.scheduler.requests import make_engine, make_request
from tests.scheduler.timed_steps import run_timed

# 31B on an H200: products at 660 TFLOP/s, never faster than weights are read; attention of ten global layers.
WEIGHTS_READ, ROW, WINDOW, PAIR, KEY = 0.0144, 9.3e-5, 4e-6, 1.17e-9, 1.2e-8


def seconds_on_a_card(plan: StepPlan) -> float:
    rows, before = plan.num_scheduled.astype(float), plan.num_computed.astype(float)
    is_prompt = plan.num_scheduled > 1
    pairs = (rows * before + rows * (rows + 1) / 2)[is_prompt].sum()
    products = max(WEIGHTS_READ, ROW * rows.sum())
    return float(
        0.001 + products + WINDOW * rows[is_prompt].sum() + PAIR * pairs + KEY * before[~is_prompt].sum()
    ) * random.Random(plan.step).gauss(1.0, 0.02)


def step_of(*entries: tuple[int, int], drafts: int = 0) -> StepPlan:
    """Entries of tokens before and rows; every single row is followed by so many drafts."""
    before, rows = (np.array(column, np.int32) for column in zip(*entries, strict=True))
    num_drafts = np.where(rows == 1, drafts, 0).astype(np.int32)
    none = np.zeros(0, np.int32)
    return StepPlan(
        step=1,
        released_seats=(),
        admissions=(),
        freed_blocks=none,
        page_copies=none.reshape(0, 2),
        new_blocks=NewBlocks(seats=none, groups=none, indices=none, block_ids=none),
        seats=np.arange(len(entries), dtype=np.int32),
        request_numbers=np.arange(len(entries)),
        num_computed=before,
        num_scheduled=rows + num_drafts,
        num_drafts=num_drafts,
        samples=rows == 1,
        num_logit_rows=(rows == 1) + num_drafts,
        draft_token_ids=np.zeros(num_drafts.sum(), np.int64),
    )


@pytest.fixture(scope="module")
def four_long_prompts() -> list[Request]:
    return [make_request(str(index), [1] * 65_536, max_tokens=64, ignore_eos=True) for index in range(4)]


def test_answers_keep_their_pace_beside_long_prompts(four_long_prompts: list[Request]) -> None:
    """At little cost: the same products are done in more steps."""
    limits = Limits(max_num_batched_tokens=8192, max_num_seqs=8, max_model_len=70_000)
    totals = {}
    for limit in (None, 0.120, 0.060):
        timed = run_timed(
            shape_of_31b(),
            four_long_prompts,
            seconds_on_a_card,
            max_at_once=4,
            limits=replace(limits, max_step_seconds=limit),
        )
        totals[limit] = timed.now
        slowest = max(timed.seconds_per_token().values())
        beside = [seconds for plan, seconds in timed.steps if 1 in plan.num_scheduled]
        if limit is None:
            assert slowest > 0.4
        else:
            assert slowest <= limit
            assert np.quantile(beside, 0.9) <= 1.05 * limit
    assert totals[0.120] <= 1.05 * totals[None]


def test_without_running_answers_prompts_get_the_whole_budget(four_long_prompts: list[Request]) -> None:
    limits = Limits(max_num_batched_tokens=8192, max_num_seqs=8, max_model_len=70_000, max_step_seconds=0.01)
    timed = run_timed(shape_of_31b(), four_long_prompts[:1], seconds_on_a_card, max_at_once=1, limits=limits)
    assert [plan.num_tokens for plan, _ in timed.steps[:8]] == [8192] * 8


def test_a_time_that_no_step_keeps_to_starves_nobody() -> None:
    engine = make_engine(
        make_layout((8, 4), (None, 10)), num_blocks=200, max_num_batched_tokens=128, max_step_seconds=1e-6
    )
    engine.submit(make_request("short", [1, 2, 3], max_tokens=40, ignore_eos=True))
    engine.step()
    engine.submit(make_request("long", [index % 5 for index in range(200)], max_tokens=2))
    chunks = []
    while "long" not in engine.finish_reasons:
        chunks.append(int(engine.scheduler.plan().entries.num_scheduled.max()))
        engine.step()
    assert chunks[:4] == [LEAST_ROWS, LEAST_ROWS, LEAST_ROWS, 200 - 3 * LEAST_ROWS]
    stats = engine.scheduler.stats()
    assert stats.num_short_steps == 3
    assert stats.num_long_steps == len(chunks)


COSTS = st.builds(
    StepCost,
    row=st.floats(0, 1e-3),
    pair=st.floats(0, 1e-6),
    key=st.floats(0, 1e-6),
    step=st.floats(0, 0.05),
    max_num_rows=st.sampled_from([None, 600, 20_000]),
)


@given(
    COSTS,
    st.floats(1e-3, 1.0),
    st.lists(st.integers(1, 70_000), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 70_000), st.integers(2, 8192)), min_size=1, max_size=4),
)
@example(StepCost(step=0.03125), 0.03125, [1], [(0, 2), (0, 2)])
def test_chunks_are_as_long_as_time_allows(
    cost: StepCost, limit: float, singles: list[int], prompts: list[tuple[int, int]]
) -> None:
    time = TimeLeft(limit, cost, np.array(singles))
    seconds = cost.step + len(singles) * cost.row + sum(singles) * cost.key
    num_rows, has_some = len(singles), False

    def predicted(start: int, count: int) -> float:
        return seconds + count * cost.row + (count * start + count * (count + 1) / 2) * cost.pair

    for start, wanted in prompts:
        count = time.most_rows(start, wanted)
        time.take(start, count)
        room = wanted if cost.max_num_rows is None else min(wanted, cost.max_num_rows - num_rows)
        if has_some or count > min(LEAST_ROWS, wanted):
            # Rows that cost nothing delay nobody, though the time is over.
            assert count == 0 or predicted(start, count) <= max(AIM * limit, seconds) * (1 + 1e-9)
            assert count >= room or predicted(start, count + 1) >= AIM * limit * (1 - 1e-9)
        else:
            assert count == min(LEAST_ROWS, wanted)
        seconds, num_rows, has_some = predicted(start, count), num_rows + count, has_some or count > 0


def test_a_picture_of_the_first_in_line_is_not_cut() -> None:
    time = TimeLeft(1e-9, StepCost(row=1.0), np.array([5]))
    assert time.most_rows(0, 1000, least=280) == 280
    time.take(0, 280)
    assert time.most_rows(0, 1000, least=280) == 0
    assert TimeLeft(1e-9, StepCost(row=1.0), np.zeros(0, np.int64)).most_rows(0, 1000) == 1000


@settings(max_examples=40)
@given(COSTS.filter(lambda cost: cost.row > 1e-6), st.integers(0, 1000))
def test_costs_are_learned(cost: StepCost, seed: int) -> None:
    """Steps like those that were seen are predicted, whatever else ran beside them."""
    draw, learner = random.Random(seed), CostLearner()

    def a_step() -> StepPlan:
        singles = [(draw.randrange(30_000), 1) for _ in range(draw.randrange(6))]
        return step_of(*singles, (draw.randrange(60_000), draw.randrange(2, 8192)), drafts=draw.choice([0, 0, 3]))

    def seconds_of(plan: StepPlan, cost: StepCost) -> float:
        single = plan.num_scheduled - plan.num_drafts == 1
        pairs = plan.num_scheduled * (plan.num_computed + (plan.num_scheduled + 1) / 2)
        keys = (plan.num_computed + 1)[single].sum()
        return float(cost.step + plan.num_tokens * cost.row + pairs[~single].sum() * cost.pair + keys * cost.key)

    for _ in range(300):  # by when the first ones, whose times were cut as strange, are forgotten
        plan = a_step()
        learner.learn(plan, seconds_of(plan, cost))
    for _ in range(10):
        plan = a_step()
        assert seconds_of(plan, learner.cost()) == pytest.approx(seconds_of(plan, cost), rel=0.1)


def test_what_tells_nothing_about_prompts_is_not_learned() -> None:
    learner = CostLearner()
    before = learner.cost()
    assert before == replace(NO_COST, max_num_rows=512)
    with_tower = replace(step_of((0, 500)), media=EncoderWork(encoded=("picture",)))
    every_logit = replace(step_of((0, 500)), num_logit_rows=np.array([500]))
    for plan in (step_of((10, 1), (20, 1)), step_of((10, 1), drafts=4), with_tower, every_logit):
        learner.learn(plan, 1.0)
    assert learner.cost() == before
    learner.learn(step_of((0, 500)), 1.0)
    assert learner.cost() == StepCost(row=pytest.approx(0.002), max_num_rows=1000)


def test_a_step_that_met_something_else_counts_little() -> None:
    learner = CostLearner()
    for index in range(40):
        learner.learn(step_of((0, 1000)), 60.0 if index == 30 else 0.1)
    assert 1000 * learner.cost().row + learner.cost().step == pytest.approx(0.1, rel=0.05)
