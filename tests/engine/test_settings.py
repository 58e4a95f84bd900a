"""Answers to what a user left open about the cache, and what is said at start-up."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from facet.config import EngineConfig
from facet.engine.capacity import Capacity
from facet.engine.engine import make_engine
from facet.engine.settings import (
    EngineSettings,
    resolve,
    resolve_kv_dtypes,
)
from facet.engine.start_lines import BATCH_INVARIANT_LINE, NO_FP8_PRODUCTS, NOT_BATCH_INVARIANT_LINE, fp8_lines
from facet.errors import ConfigError
from facet.kernels.arithmetic import USUAL
from facet.kernels.quantized import packed_int4
from facet.kernels.quantized.cases import FORMATS, Case
from facet.layers.placement import Placement
from facet.layers.quantized_weight import QuantizedWeight
from facet.model import resolving
from facet.model.families import read_model_spec
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.request import Request
from facet.sampling_params import SamplingParams
from tests.published_configs import PUBLISHED
from tests.tiny_checkpoints import SHRUNK, write_config

NUM_BYTES = 2**22


def config_of(folder: Path, **more: object) -> EngineConfig:
    write_config(folder, SHRUNK["Gemma 4 31B"])
    return EngineConfig(model=str(folder), load_format="dummy", device="cpu", kv_cache_memory_bytes=NUM_BYTES, **more)  # type: ignore[arg-type]


def settings_of(folder: Path, **more: object) -> EngineSettings:
    config = config_of(folder, **more)
    return resolve(config, load_model(config).model)


def test_pages_are_counted_with_their_scales(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, kv_cache_dtype="int8_per_token_head")
    layout = settings.layout
    assert layout.scale_page_bytes > 0
    assert settings.num_blocks == NUM_BYTES // (layout.page_bytes + layout.scale_page_bytes)


def test_a_line_says_whether_answers_depend_on_others(tmp_path: Path) -> None:
    for asked in (None, False, True):
        engine, _ = make_engine(config_of(tmp_path, batch_invariant=asked))
        assert (BATCH_INVARIANT_LINE in engine.settings.lines()) is bool(asked)
        assert (NOT_BATCH_INVARIANT_LINE in engine.settings.lines()) is not bool(asked)
        assert engine.runner.model.placement.is_batch_invariant is bool(asked)


@pytest.mark.parametrize(("name", "capability", "is_told"), [
    ("fp8 token", (8, 9), True), ("fp8 blocks", (8, 6), True), ("fp8 token", (9, 0), False),
    ("int8 token", (8, 6), False),
])  # fmt: skip
def test_a_line_tells_what_older_gpus_do_with_fp8(
    name: str, capability: tuple[int, int], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: capability)
    weight = QuantizedWeight(Case(format=FORMATS[name]).matrix(), dtype=torch.bfloat16, arithmetic=USUAL)
    assert fp8_lines([weight], torch.device("cuda")) == (NO_FP8_PRODUCTS,) * is_told
    assert fp8_lines([weight], torch.device("cpu")) == ()


def test_a_step_takes_some_time(tmp_path: Path) -> None:
    assert settings_of(tmp_path).max_step_seconds is None
    assert settings_of(tmp_path, max_step_ms=40.0).max_step_seconds == 0.04


@pytest.mark.parametrize(("policy", "expected"), [("priority", ["late", "first"]), ("fcfs", ["first", "late"])])
def test_who_runs_first(policy: str, expected: list[str], tmp_path: Path) -> None:
    engine, _ = make_engine(config_of(tmp_path, scheduling_policy=policy, max_num_seqs=1))
    for arrival, (name, priority) in enumerate((("first", 0), ("late", -5))):
        sampling = SamplingParams(max_tokens=1)
        engine.submit(
            Request(
                request_id=name,
                prompt_token_ids=(2, 3),
                sampling=sampling,
                eos_token_ids=(1,),
                priority=priority,
                arrival_time=float(arrival),
            )
        )
    ended: list[str] = []
    while engine.has_work:
        ended += [event.request_id for event in engine.step() if event.finish_reason is not None]
    assert ended == expected


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"max_step_ms": 0.0}, "--max-step-ms is 0, but must be more than 0."),
        ({"max_step_ms": float("nan")}, "--max-step-ms is nan, but must be more than 0."),
        ({"max_num_seqs": 0}, "--max-num-seqs is 0, but must be 1 or more."),
    ],
)
def test_numbers_are_refused_before_weights_are_loaded(
    numbers: dict[str, float], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facet.engine.loading._load", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_engine(config_of(tmp_path, **numbers))


def test_the_dtype_is_said_where_it_is_not_the_models(tmp_path: Path) -> None:
    assert not any("quantized" in line for line in settings_of(tmp_path).lines())
    settings = settings_of(tmp_path, dtype="bfloat16", kv_cache_dtype="global=fp8", kv_cache_dtype_skip_layers=("5",))
    lines = settings.lines()
    (line,) = [line for line in lines if "quantized" in line]
    assert line == (
        "Keys and values are stored quantized: sliding layers as bfloat16; global layers as bfloat16, fp8_e4m3."
    )


def test_an_engine_with_a_dtype_answers(tmp_path: Path) -> None:
    engine, _ = make_engine(config_of(tmp_path, kv_cache_dtype="fp8_per_token_head"))
    engine.submit(
        Request(
            request_id="x",
            prompt_token_ids=(2, 3, 4),
            sampling=SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
            eos_token_ids=(1,),
        )
    )
    events = []
    while engine.has_work:
        events += engine.step()
    assert [event.error for event in events] == [None] * 4


def on_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> Gemma:
    """As much of a model on a GPU as is asked for."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    placement = Placement(dtype=torch.bfloat16, device=torch.device("cuda"))
    spec = read_model_spec(PUBLISHED["Gemma 4 31B"])
    return cast(Gemma, SimpleNamespace(spec=spec, share=spec, placement=placement))


def test_a_gpu_that_lacks_a_format_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = on_gpu(monkeypatch, (8, 6))
    assert set(resolve_kv_dtypes(EngineConfig(model="m"), model).values()) == {"bfloat16"}
    with pytest.raises(ConfigError, match=r"Some GPU has compute capability 8\.6, but fp8_e4m3 needs 8\.9"):
        resolve_kv_dtypes(EngineConfig(model="m", kv_cache_dtype="fp8"), model)


@pytest.mark.parametrize("name", ["fp8_e5m2", "int8_per_token_head"])
def test_formats_that_every_gpu_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = on_gpu(monkeypatch, (8, 0))
    assert set(resolve_kv_dtypes(EngineConfig(model="m", kv_cache_dtype=name), model).values()) == {name}


def test_how_many_requests_fit_is_said_in_words_that_are_true(tmp_path: Path) -> None:
    """Also where one fits only in small steps, and where it is one."""
    layout = settings_of(tmp_path).layout
    limits = dict(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64)
    said: dict[int, str] = {}
    for num_blocks in range(4, 200):
        capacity = Capacity(layout=layout, num_blocks=num_blocks, **limits)
        if (capacity.longest_request or 0) >= 64:
            said.setdefault(capacity.sequences(64).num_sequences, capacity.lines()[-1])
    assert "64 tokens, one request fits alone, in steps of fewer than 64 tokens; --max-num-seqs allows 8" in said[0]
    assert "64 tokens, 1 request fits at once; --max-num-seqs allows 8" in said[1]
    assert "64 tokens, 2 requests fit at once; --max-num-seqs allows 8" in said[2]


def test_weights_held_in_another_dtype_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "multiplies_bfloat16", lambda device: False)
    assert any("weights are held in float32" in line for line in settings_of(tmp_path).lines())
    assert not any("float32" in line for line in settings_of(tmp_path, dtype="float32").lines())


WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "global_head_dim": 32}


@pytest.mark.skipif(not packed_int4.runs_on(torch.device("cpu")), reason="PyTorch has no fast kernel here")
def test_four_bits_are_faster_without_bfloat16_products_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "multiplies_bfloat16", lambda device: False)

    def said(quantization: str) -> bool:
        lines = settings_of(tmp_path, quantization=quantization, hf_overrides=WIDE).lines()
        return any("--dtype bfloat16 answers several times faster" in line for line in lines)

    assert said("int4")
    assert not said("int8")
