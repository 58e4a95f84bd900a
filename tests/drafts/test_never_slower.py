"""Drafts of a model beside a made-up clock: they are made where they save time, and stop where the host takes it."""

import random
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from facet.drafts.model_drafter import ModelDrafter
from facet.drafts.step_times import StepTimes
from facet.scheduler.drafting import Draftable
from facet.step import StepPlan, StepResult
from tests.scheduler.test_step_time import step_of

# E4B on an H200: seconds of rows, of one draft of every request, and how often one and two drafts are right.
ROWS = {1: 0.0032, 3: 0.0036, 32: 0.0041, 100: 0.0045, 300: 0.0064}
DRAFTING = {1: 0.00012, 32: 0.00025, 100: 0.00039}
RATES = (0.85, 0.65)
NOISE = 0.03
TOKEN = 7


@cache
def seconds_of_rows(count: int) -> float:
    return interpolate(ROWS, count)


def interpolate(measured: dict[int, float], count: int) -> float:
    return float(np.interp(count, list(measured), list(measured.values())))


@cache
def plan_of(num_requests: int, num_drafts: int, num_to_draft: int) -> StepPlan:
    return replace(step_of(*[(30, 1)] * num_requests, drafts=num_drafts), num_to_draft=num_to_draft)


@dataclass
class Clock:
    """Time as a device and its host spend it: where steps overlap, the host's work is hidden."""

    host_seconds: float  # of one step
    attention_seconds: float = 0.0  # of one row, beyond what was measured at start
    now: float = 0.0
    num_tokens: int = 0
    num_with_drafts: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(1)

    def run(self, plan: StepPlan, *, has_waited: bool) -> tuple[StepResult, float]:
        device = seconds_of_rows(plan.num_tokens) + self.attention_seconds * plan.num_tokens
        device += plan.num_to_draft * interpolate(DRAFTING, len(plan.seats))
        seconds = device + self.host_seconds if has_waited else max(device, self.host_seconds)
        seconds *= 1 + NOISE * self._random.random()
        if self._random.random() < 0.002:
            seconds += 0.05  # something else came between
        self.now += seconds
        runs = []
        for num_drafts in plan.num_drafts.tolist():
            draw = self._random.random()
            runs.append((TOKEN,) * (1 + sum(draw < rate for rate in RATES[:num_drafts])))
        self.num_tokens += sum(map(len, runs))
        self.num_with_drafts += len(plan.draft_token_ids) > 0
        return StepResult(token_ids=tuple(runs)), seconds


class Loop:
    """The part of an engine that asks a drafter."""

    def __init__(self, drafter: ModelDrafter | None = None) -> None:
        self._drafter = drafter or ModelDrafter(len(RATES), StepTimes(ROWS, DRAFTING))
        self._has_waited = False

    def run(self, clock: Clock, num_requests: int, num_steps: int) -> None:
        drafter = self._drafter
        for _ in range(num_steps):
            drafts = {}
            if drafter.could_gain(num_requests):
                drafts = drafter.propose([Draftable(number, [1], [], 0, 8) for number in range(num_requests)])
            num_drafts = max(map(len, drafts.values()), default=0)
            plan = plan_of(num_requests, num_drafts, drafter.num_ahead(num_requests))
            result, seconds = clock.run(plan, has_waited=self._has_waited)
            drafter.learn(plan, result, seconds)
            if plan.num_to_draft:
                drafter.hear(plan, ((TOKEN,) * plan.num_to_draft,) * num_requests)
            # What has drafts, or drafts behind it, is waited for.
            self._has_waited = num_drafts > 0 or plan.num_to_draft > 0


class Always(ModelDrafter):
    """Whatever it costs."""

    def __init__(self) -> None:
        super().__init__(len(RATES), StepTimes({1: 1.0, 1000: 1.0}))

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        super().learn(plan, result, 1.0)


class Never(ModelDrafter):
    def __init__(self) -> None:
        super().__init__(0, StepTimes(ROWS))


def speed(loop: Loop, clock: Clock, num_requests: int, num_steps: int) -> float:
    """Tokens per second."""
    num_tokens, start = clock.num_tokens, clock.now
    loop.run(clock, num_requests, num_steps)
    return (clock.num_tokens - num_tokens) / (clock.now - start)


@pytest.mark.parametrize(
    ("num_requests", "host_seconds", "attention_seconds"),
    [
        (1, 0.0003, 0.0),
        (1, 0.0011, 0.0),
        (1, 0.008, 0.0),
        (32, 0.0026, 0.0),
        (32, 0.0052, 14e-6),
        (100, 0.0003, 0.0),
        (100, 0.003, 14e-6),
        (100, 0.006, 14e-6),
        (100, 0.009, 14e-6),
    ],
)
def test_drafts_are_never_slower(num_requests: int, host_seconds: float, attention_seconds: float) -> None:
    """And where they are faster, most of the gain is had."""
    num_steps = 2000 if num_requests == 1 else 600
    own, never, always = (
        speed(Loop(drafter), Clock(host_seconds, attention_seconds), num_requests, num_steps)
        for drafter in (None, Never(), Always())
    )
    assert own > 0.99 * never
    assert own > 0.92 * always


def test_drafts_follow_what_the_host_takes() -> None:
    """A host that becomes slow ends them within half a second, and some seconds after it has become fast
    they are back."""
    loop = Loop()

    def share_drafted(clock: Clock, num_steps: int) -> float:
        loop.run(clock, 100, num_steps)
        return clock.num_with_drafts / num_steps

    assert share_drafted(Clock(0.001), 400) > 0.95
    slow = Clock(0.006, attention_seconds=14e-6)
    assert share_drafted(slow, 40) < 0.85
    assert share_drafted(replace(slow, num_with_drafts=0), 400) < 0.05
    assert share_drafted(Clock(0.001), 3000) > 0.4


def test_each_load_has_times_of_its_own() -> None:
    """What a hundred requests take from the host says nothing about one."""
    loop = Loop()
    for _ in range(3):
        many, one = Clock(0.0045, attention_seconds=14e-6), Clock(0.001)
        loop.run(many, 100, 300)
        loop.run(one, 1, 300)
        assert many.num_with_drafts < 30
        assert one.num_with_drafts > 295
