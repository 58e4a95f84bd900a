"""Engines over quantized weights: company changes no answer, every type of cache serves, and start-up lines say it."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from facet.config import EngineConfig, ModelConfig
from facet.engine.engine import make_engine as make_whole_engine
from facet.engine.settings import resolve
from facet.engine.start_lines import NO_KERNELS
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.layers.placement import Placement
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.request import Request
from facet.sampling_params import SamplingParams
from tests.engine.harness import make_engine
from tests.engine.random_company import Company, answers_alone, check_batches, draw_requests
from tests.model.paged_model import load
from tests.model.quantized_files import VARIANTS, wide, write_variant
from tests.tiny_checkpoints import write_config

LONG = {"max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("quantization", "name"), [("int4", "Gemma 4 E4B"), ("fp8", "Gemma 4 26B-A4B"), ("int8", "Gemma 4 31B")]
)
def test_company_changes_no_bit(quantization: str, name: str, tmp_path: Path) -> None:
    """Activations that are rounded too are rounded row by row: alone equals together."""
    folder = write_config(tmp_path, wide(name) | LONG)
    config = ModelConfig(
        model=str(folder),
        device="cpu",
        dtype="float32",
        load_format="dummy",
        quantization=quantization,
        quantize_head=True,
    )
    model = load_model(config, arithmetic=BATCH_INVARIANT).model
    company = Company(19, num_batches=2)
    requests = company.chosen(draw_requests(6, model.spec.vocab_size, seed=3))
    alone = answers_alone(make_engine(model, enable_prefix_caching=False, overlapped=False), requests)
    engine = make_engine(model, max_num_batched_tokens=company.chunk)
    check_batches(engine, company, requests, alone, seed=quantization)


@pytest.mark.parametrize("kv_cache_dtype", ["fp8_e5m2", "fp8", "int8_per_token_head", "fp8_per_token_head"])
def test_a_cache_is_quantized_whatever_the_weights_are(kv_cache_dtype: str, tmp_path: Path) -> None:
    write_variant(tmp_path, VARIANTS["int4 groups of 32"])
    config = EngineConfig(
        model=str(tmp_path / "quantized"),
        device="cpu",
        dtype="float32",
        kv_cache_memory_bytes=2**22,
        kv_cache_dtype=kv_cache_dtype,
    )
    engine, _ = make_whole_engine(config)
    assert "Weights: int4, groups of 32" in engine.settings.lines()[0]
    sampling = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    engine.submit(Request(request_id="x", prompt_token_ids=(2, 3, 4), sampling=sampling, eos_token_ids=(1,)))
    events = []
    while engine.has_work:
        events += engine.step()
    assert [event.error for event in events] == [None] * 4


def test_no_graphs_on_a_gpu_before_there_are_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    folder = write_config(tmp_path, wide("Gemma 4 31B"))
    placement = Placement(dtype=torch.bfloat16, device=torch.device("cuda"))
    for quantization in (None, "fp8"):
        loaded = load(folder, dtype="float32", load_format="dummy", quantization=quantization)
        model = SimpleNamespace(
            spec=loaded.spec, share=loaded.spec, placement=placement, num_positions=64, modules=loaded.model.modules
        )
        config = EngineConfig(model="m", kv_cache_memory_bytes=2**22)
        settings = resolve(config, cast(Gemma, model), loaded.lines())
        assert bool(settings.graph_sizes or settings.piece_sizes) is (quantization is None)
        assert (NO_KERNELS in settings.lines()) is (quantization is not None)
