"""Steps with drafts of a model launched ahead of the tokens they follow: no bit of an answer changes.

The drafter here knows the answers, makes mistakes, and checks that the device has come as far as it says.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.engine.engine import Engine
from facet.engine.ranks import LeadingRunner
from facet.engine.step_codec import decode_plan, encode_plan
from facet.kv_cache.accountant import need_of
from facet.model.gemma import Gemma
from facet.request import Request
from facet.runner.runner import LaunchedStep, Runner
from facet.step import StepPlan
from facet.thoughts import ThoughtTokens
from tests.engine.harness import Answer, kv_layout, make_engine, run
from tests.engine.test_drafts import SAMPLING, SEEDED, answered_without_drafts, said
from tests.tiny_drafters import AlwaysDrafts
from tests.tiny_models import TinyModel

TinyModels = Callable[[str], TinyModel]
Undrafted = Callable[[str], tuple[Gemma, list[Request], dict[str, Answer]]]

NUM_DRAFTS = 3
THOUGHT = ThoughtTokens(open_id=50, close_id=51)
BUDGET = replace(SEEDED, thinking_token_budget=5, logit_bias={THOUGHT.open_id: 9.0})  # thoughts open soon


class KnowsAnswers:
    """In place of a drafter on the device."""

    def __init__(
        self, requests: Sequence[Request], answers: Mapping[str, Sequence[int]], vocab_size: int, seed: int
    ) -> None:
        # Requests are numbered as they are submitted.
        self._tokens = {
            number: [*request.prompt_token_ids, *answers[request.request_id]]
            for number, request in enumerate(requests, 1)
        }
        self._vocab_size = vocab_size
        self._random = random.Random(seed)

    def draft(self, plan: StepPlan, token_ids: Tensor, hidden: Tensor, num_more: Tensor | None) -> Tensor:
        last = (plan.num_computed + plan.num_scheduled - plan.num_drafts)[plan.samples]
        last = last + (0 if num_more is None else num_more.cpu().numpy())
        rows = zip(plan.request_numbers[plan.samples].tolist(), last.tolist(), token_ids.tolist(), strict=True)
        return torch.tensor([self._guess(*row, plan.num_to_draft) for row in rows], device=token_ids.device)

    def _guess(self, number: int, last: int, token_id: int, count: int) -> list[int]:
        tokens = self._tokens[number]
        # A step may have been launched behind the end: what follows there is never heard of.
        assert last >= len(tokens) or tokens[last] == token_id, "the device is somewhere else"
        is_wrong = self._random.choice([0.0, 0.1, 0.6])
        return [
            self._random.randrange(self._vocab_size)
            if self._random.random() < is_wrong or place >= len(tokens)
            else tokens[place]
            for place in range(last + 1, last + 1 + count)
        ]


class BytesRunner(LeadingRunner):
    """Runs what travels: a plan is encoded and decoded first."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner, lambda message: None)

    def launch(self, plan: StepPlan) -> LaunchedStep:
        return super().launch(decode_plan(encode_plan(plan)))


def make_requests(window: int) -> list[Request]:
    requests = []
    for length in (5, 3 * window + 2):
        for name, sampling in (SAMPLING | {"budget": BUDGET}).items():
            requests.append(
                Request(
                    request_id=f"{name} {length}",
                    prompt_token_ids=tuple(3 + (len(name) + 7 * place) % 480 for place in range(length)),
                    sampling=sampling,
                    thought=THOUGHT,
                    eos_token_ids=(1,),
                    arrival_time=float(len(requests)),
                )
            )
    return requests


@pytest.fixture(scope="module")
def undrafted(tiny_model: TinyModels) -> Undrafted:
    return cache(lambda name: answered_without_drafts(tiny_model(name), make_requests))


def token_ids(answers: Mapping[str, Answer]) -> dict[str, list[int]]:
    return {request_id: answer.token_ids for request_id, answer in answers.items()}


def make_engine_ahead(
    model: Gemma, requests: Sequence[Request], answers: Mapping[str, Sequence[int]], *, seed: int = 0, **options: Any
) -> tuple[Engine, AlwaysDrafts]:
    drafter = AlwaysDrafts(NUM_DRAFTS)
    engine = make_engine(model, drafter=drafter, **{"graph_sizes": (4, 32, 112)} | options)
    knowing = KnowsAnswers(requests, answers, model.spec.vocab_size, seed)
    assert isinstance(engine.runner, Runner)
    engine.runner._sampling.draft_ahead = knowing  # type: ignore[assignment]
    return Engine(BytesRunner(engine.runner), engine.settings, drafter=drafter), drafter


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gemma4_e2b_small", {"piece_sizes": (16, 64)}),
        ("gemma4_31b_small", {"fast_prefill": False, "max_num_seqs": 5}),
    ],
)
def test_steps_ahead_change_no_bit(name: str, options: dict[str, Any], undrafted: Undrafted) -> None:
    model, requests, expected = undrafted(name)
    engine, drafter = make_engine_ahead(model, requests, token_ids(expected), **options)
    assert said(run(engine, requests, check_every=1)) == said(expected)
    assert drafter.num_steps_ahead > 3
    counts = engine.stats().scheduler.drafts
    assert 0 < counts.num_accepted < counts.num_drafts
    assert counts.num_accepted_by_place[2] > 0


def test_a_lone_request_runs_ahead_from_its_prompt_on(undrafted: Undrafted) -> None:
    model, requests, expected = undrafted("gemma4_e2b_small")
    for request in requests:
        engine, drafter = make_engine_ahead(model, [request], token_ids(expected), seed=1)
        (answer,) = run(engine, [request], check_every=1).values()
        assert said({"": answer}) == said({"": expected[request.request_id]})
        # Waited for is only who has no room for drafts: the first and the last tokens there may be.
        assert drafter.num_steps_ahead >= engine.stats().work.num_steps - 3


def test_steps_ahead_change_no_bit_where_requests_give_way(undrafted: Undrafted) -> None:
    model, requests, expected = undrafted("gemma4_e2b_small")
    longest = max(len(request.prompt_token_ids) for request in requests) + SAMPLING["greedy"].max_tokens
    num_blocks = 3 * need_of(kv_layout(model), 2, num_tokens=longest).num_blocks
    engine, drafter = make_engine_ahead(model, requests, token_ids(expected), seed=2, num_blocks=num_blocks)
    assert said(run(engine, requests, check_every=1)) == said(expected)
    assert engine.stats().scheduler.num_preemptions > 0
    assert drafter.num_steps_ahead > 2


def test_requests_come_and_go_between_steps_ahead(undrafted: Undrafted) -> None:
    model, requests, expected = undrafted("gemma4_e2b_small")
    engine, drafter = make_engine_ahead(model, requests, token_ids(expected), seed=3)
    cancelled = {request.request_id: 3 + index % 9 for index, request in enumerate(requests) if index % 3 == 0}
    arrivals = {request.request_id: 4 * index for index, request in enumerate(requests)}
    answers = run(engine, requests, arrivals=arrivals, cancel_after=cancelled, check_every=1)
    assert drafter.num_steps_ahead > 20
    for request_id, answer in answers.items():
        if answer.finish_reason == "abort":
            assert answer.token_ids == expected[request_id].token_ids[: len(answer.token_ids)]
        else:
            assert said({"": answer}) == said({"": expected[request_id]})
