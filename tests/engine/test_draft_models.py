"""Drafters of Gemma 4 on the engine, against rounds computed by transformers' modules without a cache.

What is compared: drafted ids and their logits, how many are accepted, and the text, which is that of the model alone.
FACET_DRAFTER_PAIRS names a folder that `tests/spec/make_tiny_drafters.py` filled with trained pairs.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.config import EngineConfig, ModelConfig
from facet.draft_config import ModelDrafts, read_draft_config
from facet.engine.engine import Engine
from facet.engine.loading import make_runner
from facet.errors import ConfigError
from facet.model.config_fields import read_config_file
from facet.model.draft_loader import load_draft_model, read_draft_model_spec
from facet.model.draft_model import DraftModel
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.progress import Silent
from facet.request import Request
from facet.sampling_params import SamplingParams
from tests import tiny_drafters
from tests.engine.harness import MAX_MODEL_LEN, make_engine, mixed_requests, run
from tests.tiny_drafters import AlwaysDrafts, write_pair

TOLERANCE = 1e-3  # of logits of size 4 to 8; another position or one key more changes them by 0.1 and more
NUM_DRAFTS = (2, 3)
NUM_TOKENS = 8
RULE = "last"  # the drafter asks from the last token whose keys are stored


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    given = os.environ.get("FACET_DRAFTER_PAIRS")
    if given is not None:
        found = (path.parent for path in Path(given).glob("*/reference.json"))
        return sorted(folder for folder in found if not folder.name.endswith("images"))
    out = tmp_path_factory.mktemp("pairs")
    return [make_untrained_pair(out / name, name) for name in ("gemma4_e2b", "gemma4_31b")]


def make_untrained_pair(folder: Path, name: str) -> Path:
    """With random weights, whose drafts are seldom right: training takes a minute."""
    from tests.spec import make_tiny_drafters as maker

    config, drafter_config, _, _ = maker.PAIRS[name]
    target_class, target_config, drafter_class, draft_config = maker.class_pair(config)
    target = maker.store(maker.build(target_class, target_config, config, 1), config, str(folder / "target"))
    drafter = maker.build(drafter_class, draft_config, drafter_config, 2)
    drafter = maker.store(drafter, drafter_config, str(folder / "assistant"))
    window, cases = config["sliding_window"], []
    for length in (window - 3, 2 * window + 5):
        prompt = [2 + 7 * place % 480 for place in range(length)]
        runs = {
            str(num_drafts): maker.speculate(target, drafter, RULE, prompt, num_drafts, NUM_TOKENS, window)
            for num_drafts in NUM_DRAFTS
        }
        cases.append(
            {
                "prompt": prompt,
                "continuation": runs[str(NUM_DRAFTS[0])][1][:NUM_TOKENS],
                "runs": {RULE: {count: rounds for count, (rounds, _, _) in runs.items()}},
            }
        )
    (folder / "reference.json").write_text(json.dumps({"cases": cases}))
    return folder


@dataclass
class Pair:
    name: str
    model: Gemma
    draft_model: DraftModel
    cases: list[dict[str, Any]]


def load_pair(folder: Path) -> Pair:
    config = ModelConfig(model=str(folder / "target"), device="cpu", max_model_len=MAX_MODEL_LEN)
    model = load_model(config).model
    draft_model = load_draft_model(str(folder / "assistant"), model, config, Silent())
    return Pair(folder.name, model, draft_model, json.loads((folder / "reference.json").read_text())["cases"])


@dataclass
class Recorder:
    """The logits of drafts, in the order they were made, for one sequence."""

    draft_model: DraftModel
    top: list[list[tuple[int, float]]] = field(default_factory=list)

    def best_tokens(self, state: Tensor) -> Tensor:
        model = self.draft_model
        if model.centroids is None:
            logits = model.embedding(state)
            token_ids = torch.arange(logits.shape[1])[None]
        else:
            token_ids, logits = model.candidates(state)
        values, places = logits[0].topk(5)
        self.top.append(list(zip(token_ids[0][places].tolist(), values.tolist(), strict=True)))
        return DraftModel.best_tokens(model, state)


@pytest.mark.parametrize(
    ("num_drafts", "options"),
    [
        (2, {"overlapped": True, "graph_sizes": (1, 2, 8)}),
        (4 if "FACET_DRAFTER_PAIRS" in os.environ else 3, {"overlapped": False}),
    ],
    ids=["captured", "kernel by kernel"],
)
def test_rounds_are_those_of_the_reference(
    num_drafts: int, options: dict[str, Any], pairs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in pairs:
        pair = load_pair(folder)
        for case in pair.cases:
            recorder, drafter = Recorder(pair.draft_model), AlwaysDrafts(num_drafts)
            monkeypatch.setattr(pair.draft_model, "best_tokens", recorder.best_tokens)
            engine = make_engine(pair.model, drafter=drafter, draft_model=pair.draft_model, **options)
            expected = case["continuation"]
            sampling = SamplingParams(temperature=0.0, max_tokens=len(expected) + 8, ignore_eos=True)
            answers = run(engine, [Request(request_id="a", prompt_token_ids=tuple(case["prompt"]), sampling=sampling)])
            assert answers["a"].token_ids[: len(expected)] == expected
            rounds = case["runs"][RULE][str(num_drafts)]
            top = [entry for one in rounds for entry in one["draft_top5"]]
            expected_rounds = [(one["drafted"], (tuple(one["emitted"]),)) for one in rounds]
            assert drafter.rounds[: len(rounds)] == expected_rounds, pair.name
            for ours, theirs in zip(recorder.top, top, strict=False):
                assert [token_id for token_id, _ in ours[:1]] == [token_id for token_id, _ in theirs[:1]]
                for (_, logit), (_, other) in zip(ours, theirs, strict=True):
                    assert abs(logit - other) < TOLERANCE


def test_a_drafter_of_another_model_is_refused(pairs: list[Path]) -> None:
    target = load_pair(pairs[0]).model.spec
    config = dict(read_config_file(pairs[0] / "assistant" / "config.json"))
    text = config["text_config"]
    for changed, words in (
        ({"backbone_hidden_size": 99}, "width 99, this one"),
        ({"text_config": {**text, "vocab_size": 100}}, "a vocabulary of 100"),
        ({"text_config": {**text, "head_dim": 8}}, "heads of size 8"),
        ({"text_config": {**text, "sliding_window": 7}}, "a window of 7"),
        ({"model_type": "gemma4_text"}, "is no drafter"),
    ):
        with pytest.raises(ConfigError, match=words) as error:
            read_draft_model_spec({**config, **changed}, target, "NAME")
        assert "\n" not in str(error.value)


def test_vllms_form_names_a_drafter() -> None:
    assert read_draft_config({"model": "a/b", "num_speculative_tokens": 2}) == ModelDrafts(model="a/b", num_drafts=2)
    for given in (
        {"model": 3},
        {"model": "a/b", "num_speculative_tokens": 999},
        {"model": "a/b", "prompt_lookup_min": 1},
        {"model": "a/b", "num_speculative_tokens": 2, "synthetic_acceptance_rates": [0.5]},
        {"model": "a/b", "num_speculative_tokens": 2, "synthetic_acceptance_rates": [0.5, 0.6]},
        {"model": "a/b", "num_speculative_tokens": 1, "synthetic_acceptance_rates": ["all"]},
    ):
        with pytest.raises(ConfigError, match="--speculative-config"):
            read_draft_config(given)


def test_drafts_are_accepted_at_made_up_rates(tmp_path: Path) -> None:
    model, drafter = write_pair("Gemma 4 E4B", tmp_path)
    speculative = {"model": str(drafter), "num_speculative_tokens": 3, "synthetic_acceptance_rates": [1.0, 0.5, 0.0]}
    config = EngineConfig(
        model=str(model),
        load_format="dummy",
        device="cpu",
        dtype="float32",
        max_model_len=256,
        speculative_config=speculative,
    )
    ready = make_runner(config, Silent())
    assert any("answers mean nothing" in line for line in ready.settings.lines())
    engine = Engine(ready.runner, ready.settings, None, AlwaysDrafts(3))
    sampling = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
    run(engine, [Request(request_id="a", prompt_token_ids=(5, 6, 7), sampling=sampling)])
    counts = engine.stats().scheduler.drafts
    assert counts.num_runs > 25
    first, second, third = (count / counts.num_runs for count in counts.num_accepted_by_place)
    assert first > 0.98  # all but what the end cuts off
    assert 0.3 < second < 0.7
    assert third == 0


@pytest.mark.parametrize(("name", "kv_dtype"), [("Gemma 4 E4B", "int8_per_token_head"), ("Gemma 4 31B", "auto")])
def test_drafts_change_no_answer(name: str, kv_dtype: str, tmp_path: Path) -> None:
    """Several requests at once, in captured steps, with keys and values stored in eight bits or not."""
    model, draft_model = tiny_drafters.load_pair(name, tmp_path, device="cpu", max_model_len=MAX_MODEL_LEN)
    requests = mixed_requests(16, model.spec.vocab_size, count=8, seed=1)
    options: dict[str, Any] = {"kv_dtype": kv_dtype, "graph_sizes": (2, 8, 40), "max_num_seqs": 8}
    expected = run(make_engine(model, **options), requests)
    engine = make_engine(model, drafter=AlwaysDrafts(3), draft_model=draft_model, **options)
    got = run(engine, requests)
    assert {key: one.token_ids for key, one in got.items()} == {key: one.token_ids for key, one in expected.items()}
    assert engine.stats().scheduler.drafts.num_drafts > 20
