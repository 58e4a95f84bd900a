"""Drafters on a GPU: captured or not they draft the same, and answers are those without drafts."""

from pathlib import Path

import pytest

from facet.engine.engine import Engine
from facet.request import Request
from facet.sampling_params import SamplingParams
from tests.engine.harness import MAX_MODEL_LEN, make_engine, mixed_requests, run
from tests.engine.test_steps_ahead import make_engine_ahead
from tests.tiny_drafters import NAMES, AlwaysDrafts, load_pair

CAPTURED = {"graph_sizes": (1, 2, 4, 16, 64), "piece_sizes": (32, 128)}


@pytest.mark.parametrize("name", NAMES)
def test_drafts_change_no_answer(name: str, tmp_path: Path) -> None:
    model, draft_model = load_pair(name, tmp_path, device="cuda", max_model_len=MAX_MODEL_LEN)
    requests = mixed_requests(16, model.spec.vocab_size, count=24, seed=1)
    expected = run(make_engine(model, **CAPTURED), requests)
    for overlapped in (True, False):
        engine = make_engine(
            model, drafter=AlwaysDrafts(3), draft_model=draft_model, overlapped=overlapped, max_num_seqs=12, **CAPTURED
        )
        got = run(engine, requests)
        assert {key: answer.token_ids for key, answer in got.items()} == {
            key: answer.token_ids for key, answer in expected.items()
        }
        assert engine.stats().scheduler.drafts.num_drafts > 50


@pytest.mark.parametrize("name", NAMES)
def test_captured_drafts_are_those_made_kernel_by_kernel(name: str, tmp_path: Path) -> None:
    model, draft_model = load_pair(name, tmp_path, device="cuda", max_model_len=MAX_MODEL_LEN)
    requests = mixed_requests(16, model.spec.vocab_size, count=6, seed=2)
    rounds = []
    for options in ({}, CAPTURED | {"overlapped": False}):
        drafter = AlwaysDrafts(4)
        for request in requests:
            run(make_engine(model, drafter=drafter, draft_model=draft_model, **options), [request])
        rounds.append(drafter.rounds)
    assert rounds[0] == rounds[1]


@pytest.mark.parametrize("name", NAMES)
def test_steps_ahead_change_no_answer(name: str, tmp_path: Path) -> None:
    """One request and several, behind a drafter that knows the answers and makes mistakes, and behind the real one."""
    model, draft_model = load_pair(name, tmp_path, device="cuda", max_model_len=MAX_MODEL_LEN)
    requests = [
        Request(
            request_id=str(index),
            prompt_token_ids=tuple(3 + (5 * place + index) % 100 for place in range(5 + 9 * index)),
            sampling=SamplingParams(temperature=index % 2, seed=index, max_tokens=60, ignore_eos=True),
        )
        for index in range(6)
    ]
    expected = {key: answer.token_ids for key, answer in run(make_engine(model, **CAPTURED), requests).items()}

    def check(engine: Engine, drafter: AlwaysDrafts, asked: list[Request]) -> None:
        got = run(engine, asked)
        assert {key: answer.token_ids for key, answer in got.items()} == {
            one.request_id: expected[one.request_id] for one in asked
        }
        assert drafter.num_steps_ahead > 10

    for asked in ([requests[2]], [requests[3]], requests):
        check(*make_engine_ahead(model, asked, expected, **CAPTURED), asked)
        drafter = AlwaysDrafts(3)
        check(make_engine(model, drafter=drafter, draft_model=draft_model, **CAPTURED), drafter, asked)
