"""Drafters of Gemma 4 on the engine, against rounds computed by transformers' modules without a cache.

What is compared: drafted ids and their logits, how many are accepted, and the text, which is that of the model alone.
FACET_DRAFTER_PAIRS names a folder that `tests/spec/make_tiny_drafters.py` filled with trained pairs.
"""

import json
import os
import queue
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from facet import bundled_model
from facet.config import EngineConfig, ModelConfig
from facet.drafts.combined_drafter import CombinedDrafter
from facet.drafts.config import ModelDrafts, SuffixDrafts, read_draft_config
from facet.drafts.model_drafter import ModelDrafter
from facet.drafts.text_drafter import TextDrafter
from facet.engine.engine import Engine
from facet.engine.found_drafter import with_found_drafter
from facet.engine.loading import make_runner
from facet.engine.memory_plan import make_plan
from facet.engine.plan_config import PlanConfig
from facet.engine.ranks import LeadingRunner, follow
from facet.errors import ConfigError
from facet.layers.rank_group import RankGroup
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
from tests.engine.test_text_drafts import FreeRows
from tests.ranks import on_ranks
from tests.tiny_drafters import AlwaysDrafts, Rounds, write_pair

TOLERANCE = 1e-3  # of logits of size 4 to 8; another position or one key more changes them by 0.1 and more
NUM_DRAFTS = (2, 3)
NUM_TOKENS = 8
GPU = torch.device("cuda")
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


def load_pair(folder: Path, group: RankGroup | None = None) -> Pair:
    config = ModelConfig(model=str(folder / "target"), device="cpu", max_model_len=MAX_MODEL_LEN)
    model = load_model(config, group=group).model
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
            assert (drafter.num_steps_ahead > 0) == ("graph_sizes" in options), "drafts are verified unseen"
            for ours, theirs in zip(recorder.top, top, strict=False):
                assert [token_id for token_id, _ in ours[:1]] == [token_id for token_id, _ in theirs[:1]]
                for (_, logit), (_, other) in zip(ours, theirs, strict=True):
                    assert abs(logit - other) < TOLERANCE


@pytest.mark.parametrize("graph_sizes", [(), (1, 4)], ids=["seen", "unseen"])
def test_ranks_draft_as_one_does(graph_sizes: tuple[int, ...], pairs: list[Path]) -> None:
    for folder in pairs:
        (case, *_) = json.loads((folder / "reference.json").read_text())["cases"]
        sampling = SamplingParams(temperature=0.0, max_tokens=len(case["continuation"]) + 8, ignore_eos=True)
        request = Request(request_id="a", prompt_token_ids=tuple(case["prompt"]), sampling=sampling)
        steps: queue.Queue[bytes | None] = queue.Queue()

        def rounds(
            group: RankGroup,
            folder: Path = folder,
            request: Request = request,
            steps: queue.Queue[bytes | None] = steps,
        ) -> Rounds:
            pair, drafter = load_pair(folder, group), AlwaysDrafts(2)
            engine = make_engine(pair.model, draft_model=pair.draft_model, graph_sizes=graph_sizes)
            if not group.rank.plans:
                follow(engine.runner, steps.get)  # type: ignore[arg-type]
                return []
            runner = LeadingRunner(engine.runner, steps.put)  # type: ignore[arg-type]
            try:
                run(Engine(runner, engine.settings, drafter=drafter), [request])
            finally:
                steps.put(None)
            assert (drafter.num_steps_ahead > 0) == (len(graph_sizes) > 0)
            return drafter.rounds

        found, _ = on_ranks(2, rounds)
        expected = case["runs"][RULE]["2"]
        assert found[: len(expected)] == [(one["drafted"], (tuple(one["emitted"]),)) for one in expected]


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


@pytest.mark.parametrize(
    ("name", "kv_dtype", "quantization"),
    [("Gemma 4 E4B", "int8_per_token_head", None), ("Gemma 4 31B", "auto", "int8")],
)
def test_drafts_change_no_answer(name: str, kv_dtype: str, quantization: str | None, tmp_path: Path) -> None:
    """Several requests at once, in captured steps; keys and values, or weights, in eight bits."""
    model, draft_model = tiny_drafters.load_pair(
        name, tmp_path, device="cpu", max_model_len=MAX_MODEL_LEN, quantization=quantization
    )
    requests = mixed_requests(16, model.spec.vocab_size, count=8, seed=1)
    options: dict[str, Any] = {"kv_dtype": kv_dtype, "graph_sizes": (2, 8, 40), "max_num_seqs": 8}
    expected = run(make_engine(model, **options), requests)
    engine = make_engine(model, drafter=AlwaysDrafts(3), draft_model=draft_model, **options)
    got = run(engine, requests)
    assert {key: one.token_ids for key, one in got.items()} == {key: one.token_ids for key, one in expected.items()}
    assert engine.stats().scheduler.drafts.num_drafts > 20


def test_a_drafter_and_the_text_together_change_no_answer(tmp_path: Path) -> None:
    model, draft_model = tiny_drafters.load_pair("Gemma 4 E4B", tmp_path, device="cpu", max_model_len=MAX_MODEL_LEN)
    requests = mixed_requests(16, model.spec.vocab_size, count=8, seed=2)
    repeated = [
        replace(request, prompt_token_ids=(request.prompt_token_ids * 8)[:60]) if index % 2 else request
        for index, request in enumerate(requests)
    ]
    expected = run(make_engine(model), repeated)
    times = FreeRows()
    suffix = SuffixDrafts(num_drafts=6, max_match=24, max_factor=2.0, min_share=0.1)
    drafter = CombinedDrafter(TextDrafter(suffix, times), ModelDrafter(3, times), times)
    engine = make_engine(model, drafter=drafter, draft_model=draft_model)
    got = run(engine, repeated)
    assert {key: one.token_ids for key, one in got.items()} == {key: one.token_ids for key, one in expected.items()}
    counts = engine.stats().scheduler.drafts
    assert sum(counts.num_accepted_by_place[3:]) > 0, "some runs are from the text: the drafter's are shorter"


def test_an_engine_starts_with_each_method(tmp_path: Path) -> None:
    model, drafter = write_pair("Gemma 4 E4B", tmp_path)
    config = EngineConfig(
        model=str(model), load_format="dummy", device="cpu", kv_cache_memory_bytes=8 << 20, max_model_len=64
    )
    for given, expected in (
        ({"method": "suffix"}, TextDrafter),
        ({"method": "ngram", "num_speculative_tokens": 4}, TextDrafter),
        ({"model": str(drafter)}, ModelDrafter),
        ({"model": str(drafter), "method": "suffix"}, CombinedDrafter),
        ({"method": "none"}, type(None)),
    ):
        assert type(make_runner(replace(config, speculative_config=given), Silent()).drafter) is expected


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [("cpu", "float32", {"method": "suffix"}), ("cpu", "bfloat16", None), ("cuda", "float32", None)],
)
def test_the_bundled_models_drafter_is_used_where_it_changes_nothing(
    device: str, dtype: str, expected: dict[str, str] | None
) -> None:
    config = EngineConfig(model=str(bundled_model.FOLDER), dtype=dtype)
    chosen, lines = with_found_drafter(config, torch.device(device))
    own = {"model": str(bundled_model.FOLDER / "assistant")}
    assert chosen.speculative_config == (None if expected is None else own | expected)
    assert len(lines) == (expected is not None)


@pytest.mark.parametrize("place", ["model-assistant", "model/assistant"])
def test_a_drafter_beside_a_local_model_is_found_and_planned_for(place: str, tmp_path: Path) -> None:
    model, drafter = write_pair("Gemma 4 E4B", tmp_path)
    config = PlanConfig(model=str(model), gpu_memory="2GiB", max_model_len=64, max_num_seqs=8)
    assert with_found_drafter(config, GPU) == (config, ())
    without = make_plan(config)
    drafter.rename(tmp_path / place)
    found, (line,) = with_found_drafter(config, GPU)
    assert found.speculative_config == {"model": str(tmp_path / place)}
    assert str(tmp_path / place) in line
    on_cpu, _ = with_found_drafter(replace(config, dtype="float32"), torch.device("cpu"))
    assert on_cpu.speculative_config == {"model": str(tmp_path / place), "method": "suffix"}
    off = replace(config, speculative_config={"method": "none"})
    assert with_found_drafter(off, GPU) == (off, ())

    bfloat16 = ModelConfig(model=str(model), load_format="dummy", device="cpu", dtype="bfloat16", max_model_len=64)
    draft_model = load_draft_model(str(tmp_path / place), load_model(bfloat16).model, bfloat16, Silent())
    counted = sum(tensor.nbytes for tensor in (*draft_model.parameters(), *draft_model.buffers()))
    planned = make_plan(config)
    assert abs(planned.drafter - counted) < 0.05 * counted  # norms are counted as other weights are
    assert planned.gpu_memory is not None
    assert without.gpu_memory is not None
    assert planned.gpu_memory.weights - without.gpu_memory.weights == planned.drafter
    assert planned.gpu_memory.graphs > without.gpu_memory.graphs

    fields = json.loads((tmp_path / place / "config.json").read_text())
    (tmp_path / place / "config.json").write_text(json.dumps({**fields, "backbone_hidden_size": 7}))
    unused, (line,) = with_found_drafter(config, GPU)
    assert unused == config
    assert "not used" in line
    assert "width 7" in line
