"""Budgets of thoughts on the engine: exact with drafts, in both orders of the loop, where memory is short."""

import random
from collections.abc import Callable

import pytest

from facet.config import ModelConfig
from facet.engine.engine import Engine
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.kv_cache.accountant import need_of
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.thoughts import ThoughtCounter, ThoughtTokens
from tests.engine.harness import Answer, Rememberer, kv_layout, make_engine, run
from tests.tiny_models import TinyModel

OPENS, CLOSES, END = 5, 6, 7
MAX_TOKENS = 18


def make_requests() -> list[Request]:
    """Thoughts that are likely to open and unlikely to close by themselves; every third request has no budget."""
    choose = random.Random(4)
    requests = []
    for index in range(24):
        bias = choose.choice([{OPENS: 8.0}, {OPENS: 6.0, CLOSES: 3.0}, {CLOSES: -100.0}])
        requests.append(
            Request(
                request_id=str(index),
                prompt_token_ids=tuple(choose.randrange(10, 500) for _ in range(choose.randrange(2, 30))),
                sampling=SamplingParams(
                    temperature=choose.choice([0.0, 1.2]),
                    seed=index,
                    max_tokens=MAX_TOKENS,
                    logit_bias=bias,
                    logprobs=1,
                    thinking_token_budget=None if index % 3 == 0 else choose.randrange(12),
                ),
                eos_token_ids=(END,),
                thought=ThoughtTokens(open_id=OPENS, close_id=CLOSES, turn_end_ids=(END,), is_open=index % 2 == 0),
                arrival_time=float(index),
            )
        )
    return requests


def check(requests: list[Request], answers: dict[str, Answer]) -> None:
    num_closed = 0
    for request in requests:
        answer, budget = answers[request.request_id], request.sampling.thinking_token_budget
        assert request.thought is not None
        assert len(answer.logprobs) == len(answer.token_ids)
        counter = ThoughtCounter(request.thought)
        for token_id in answer.token_ids:
            if budget is not None and counter.count == budget:
                assert token_id == CLOSES if counter.is_open else token_id != OPENS
                num_closed += counter.is_open
            counter.push(token_id)
        assert budget is None or counter.count <= budget
    assert num_closed > 8


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], TinyModel]) -> Gemma:
    config = ModelConfig(model=str(tiny_model("gemma4_e2b_small").folder), device="cpu", max_model_len=512)
    return load_model(config, arithmetic=BATCH_INVARIANT).model


@pytest.fixture(scope="module")
def expected(model: Gemma) -> dict[str, Answer]:
    """One token at a time, each seen before the next is computed."""
    answers = run(make_engine(model, overlapped=False), make_requests())
    check(make_requests(), answers)
    return answers


def said(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {name: answer.token_ids for name, answer in answers.items()}


def test_budgets_are_exact_however_requests_run(model: Gemma, expected: dict[str, Answer]) -> None:
    requests = make_requests()
    num_blocks = 3 * need_of(kv_layout(model), 2, num_tokens=30 + MAX_TOKENS).num_blocks
    for overlapped, has_drafts, is_tight in ((True, False, False), (True, True, False), (False, True, True)):
        drafter = Rememberer(requests, expected, model.spec.vocab_size, seed=1) if has_drafts else None
        engine: Engine = make_engine(
            model, overlapped=overlapped, drafter=drafter, num_blocks=num_blocks if is_tight else 2000
        )
        assert said(run(engine, requests)) == said(expected)
        assert drafter is None or drafter.num_drafts > 100
        assert not is_tight or engine.stats().scheduler.num_preemptions > 0


def test_a_run_of_wrong_drafts_is_cut_where_the_thought_must_close(model: Gemma, expected: dict[str, Answer]) -> None:
    """The drafts are those of the same requests without budgets, so they think on where it is forbidden."""
    requests = make_requests()
    endless = [
        Request(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            sampling=SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, logit_bias={CLOSES: -100.0}),
            eos_token_ids=(END,),
            thought=request.thought,
        )
        for request in requests
    ]
    thinking = run(make_engine(model), endless)
    answers = run(make_engine(model, drafter=Rememberer(requests, thinking, model.spec.vocab_size, 3)), requests)
    assert said(answers) == said(expected)
