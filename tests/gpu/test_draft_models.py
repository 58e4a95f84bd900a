"""Drafters on a GPU: captured or not they draft the same, and answers are those without drafts."""

from pathlib import Path

import pytest

from tests.engine.harness import MAX_MODEL_LEN, make_engine, mixed_requests, run
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
    for options in ({}, CAPTURED):
        drafter = AlwaysDrafts(4)
        for request in requests:
            run(make_engine(model, drafter=drafter, draft_model=draft_model, **options), [request])
        rounds.append(drafter.rounds)
    assert rounds[0] == rounds[1]
