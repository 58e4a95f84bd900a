"""Drafts, right and wrong, on the real engine: answers are bit for bit those of an engine that computes every token."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from facet.config import ModelConfig
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.kv_cache.accountant import need_of
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.request import Request
from facet.sampling_params import SamplingParams
from tests.engine.harness import Answer, Rememberer, kv_layout, make_engine, run
from tests.tiny_models import TinyModel

TinyModels = Callable[[str], TinyModel]
Undrafted = Callable[[str], tuple[Gemma, list[Request], dict[str, Answer]]]

GREEDY = SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True)
SEEDED = replace(GREEDY, temperature=1.0, seed=7, top_k=50, top_p=0.95)
SAMPLING = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "open": replace(GREEDY, temperature=1.2, seed=3),
    "one": replace(GREEDY, max_tokens=1),
    "two": replace(GREEDY, max_tokens=2),
    "penalties": replace(GREEDY, repetition_penalty=1.4, presence_penalty=0.6, frequency_penalty=0.3),
    "seeded penalties": replace(SEEDED, frequency_penalty=0.7),
    "logprobs": replace(SEEDED, logprobs=3, prompt_logprobs=1),
    "min_tokens": replace(SEEDED, ignore_eos=False, stop_token_ids=tuple(range(0, 512, 5)), min_tokens=9),
    "stop ids": replace(SEEDED, ignore_eos=False, stop_token_ids=tuple(range(0, 512, 11))),
    # Of few tokens: at most places one of the words would be next.
    "bad words": replace(
        SEEDED,
        allowed_token_ids=tuple(range(40, 60)),
        bad_words_token_ids=tuple((a, b) for a in range(40, 60) for b in range(40 + a % 2, 60, 2)),
    ),
    "bias": replace(SEEDED, logit_bias=dict.fromkeys(range(20), 4.0), logprobs=0),
    "allowed": replace(SEEDED, allowed_token_ids=tuple(range(40, 60)), repetition_penalty=1.2),
}


def make_requests(window: int) -> list[Request]:
    """Every setting, n > 1 among them: a prompt within the window and one of several windows."""
    requests = []
    for length in (5, 3 * window + 2):
        for name, sampling in SAMPLING.items():
            num_answers = 3 if name == "seeded" else 1
            for index in range(num_answers):
                requests.append(
                    Request(
                        request_id=f"{name} {length} {index}",
                        prompt_token_ids=tuple(3 + (len(name) + 7 * place) % 480 for place in range(length)),
                        sampling=replace(sampling, n=num_answers).for_output(index),
                        eos_token_ids=(1,),
                        arrival_time=float(len(requests)),
                    )
                )
    return requests


def answered_without_drafts(
    tiny: TinyModel, make_requests: Callable[[int], list[Request]]
) -> tuple[Gemma, list[Request], dict[str, Answer]]:
    """The model, the requests made for its window, and what they get one step after the other."""
    config = ModelConfig(model=str(tiny.folder), device="cpu", max_model_len=512)
    model = load_model(config, arithmetic=BATCH_INVARIANT).model
    requests = make_requests(tiny.window)
    return model, requests, run(make_engine(model, overlapped=False), requests)


@pytest.fixture(scope="module")
def undrafted(tiny_model: TinyModels) -> Undrafted:
    return cache(lambda name: answered_without_drafts(tiny_model(name), make_requests))


def said(answers: dict[str, Answer]) -> dict[str, Answer]:
    """All but what was found in the prefix cache, which depends on who came first."""
    return {request_id: replace(answer, num_cached_tokens=0) for request_id, answer in answers.items()}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("gemma4_e2b_small", {"overlapped": False, "max_num_batched_tokens": 19}),
        ("gemma4_e2b_small", {"overlapped": True, "graph_sizes": (4, 32), "piece_sizes": (16, 64)}),
        ("gemma4_31b_small", {"overlapped": True, "fast_prefill": False}),
    ],
)
def test_drafts_change_no_bit(name: str, how: dict[str, object], undrafted: Undrafted) -> None:
    model, requests, expected = undrafted(name)
    drafter = Rememberer(requests, expected, model.spec.vocab_size, seed=1)
    engine = make_engine(model, drafter=drafter, **how)  # type: ignore[arg-type]
    num_steps_undrafted = sum(len(answer.token_ids) for answer in expected.values())
    assert said(run(engine, requests)) == said(expected)
    work = engine.stats().work
    assert work.num_sampled_rows < num_steps_undrafted < work.num_rows
    assert drafter.num_drafts > num_steps_undrafted - work.num_sampled_rows, "some were wrong"


def test_drafts_change_no_bit_where_requests_give_way(undrafted: Undrafted) -> None:
    model, requests, expected = undrafted("gemma4_e2b_small")
    longest = max(len(request.prompt_token_ids) for request in requests) + GREEDY.max_tokens
    num_blocks = 3 * need_of(kv_layout(model), 2, num_tokens=longest).num_blocks
    for overlapped in (False, True):
        drafter = Rememberer(requests, expected, model.spec.vocab_size, seed=2)
        engine = make_engine(
            model, drafter=drafter, num_blocks=num_blocks, overlapped=overlapped, enable_prefix_caching=overlapped
        )
        assert said(run(engine, requests)) == said(expected)
        assert engine.stats().scheduler.num_preemptions > 0


def test_a_request_may_be_cancelled_with_drafts_in_flight(undrafted: Undrafted) -> None:
    model, requests, expected = undrafted("gemma4_e2b_small")
    drafter = Rememberer(requests, expected, model.spec.vocab_size, seed=3)
    engine = make_engine(model, drafter=drafter, overlapped=True)
    cancelled = {request.request_id: 5 + index for index, request in enumerate(requests) if index % 3 == 0}
    for request_id, answer in run(engine, requests, cancel_after=cancelled).items():
        if answer.finish_reason == "abort":
            assert answer.token_ids == expected[request_id].token_ids[: len(answer.token_ids)]
        else:
            assert answer.token_ids == expected[request_id].token_ids
