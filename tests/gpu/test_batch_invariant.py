"""Batch-invariant arithmetic, the default on a GPU: alone equals together over 203 random batches in bfloat16.

Alone, everything is computed in the open, all layers for all rows. In company, single rows replay graphs, prompts pass
through captured pieces of several sizes, and prompt rows skip the layers that read other layers' keys.
"""

from collections.abc import Callable

import pytest

from facet.config import EngineConfig, ModelConfig
from facet.engine.engine import make_engine as make_whole_engine
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.model.loader import load_model
from tests.engine.harness import make_engine
from tests.engine.random_company import Company, answers_alone, check_batches, draw_requests
from tests.tiny_models import SMALL_WINDOW_NAMES, TinyModel

GRAPH_SIZES = (1, 2, 4, 8)
PIECE_SIZES = (16, 48)

COMPANIES = (
    Company(16, num_batches=9),
    Company(512, num_batches=14, has_long_prompt=True),
    Company(16, num_batches=6, is_short_of_memory=True),
)


@pytest.mark.parametrize("name", SMALL_WINDOW_NAMES)
def test_company_changes_no_bit(name: str, tiny_model: Callable[[str], TinyModel]) -> None:
    tiny = tiny_model(name)
    config = ModelConfig(model=str(tiny.folder), device="cuda", max_model_len=512, dtype="bfloat16")
    model = load_model(config, arithmetic=BATCH_INVARIANT).model
    requests = draw_requests(tiny.window, model.spec.vocab_size, seed=len(name))
    solo = make_engine(model, enable_prefix_caching=False, overlapped=False, kv_dtype="bfloat16")
    expected = answers_alone(solo, requests)
    for company in COMPANIES:
        engine = make_engine(
            model,
            max_num_batched_tokens=company.chunk,
            enable_prefix_caching=company.prefix_caching,
            overlapped=company.overlapped,
            num_blocks=company.num_blocks(model, requests, "bfloat16"),
            graph_sizes=GRAPH_SIZES,
            piece_sizes=PIECE_SIZES,
            kv_dtype="bfloat16",
        )
        check_batches(engine, company, requests, expected, seed=f"{name} {company}")


def test_it_is_the_default(tiny_model: Callable[[str], TinyModel]) -> None:
    settings = dict(model=str(tiny_model("gemma4_e4b_small").folder), device="cuda", max_model_len=512)
    for flags, expected in (
        ({}, True),
        ({"batch_invariant": False}, False),
        ({"quantization": "int8"}, True),
        ({"quantization": "fp8"}, False),
        ({"quantization": "fp8", "batch_invariant": True}, True),
    ):
        config = EngineConfig(**settings, **flags, dtype="bfloat16", enforce_eager=True, kv_cache_memory_bytes=2**24)  # type: ignore[arg-type]
        engine, _ = make_whole_engine(config)
        assert engine.runner.model.placement.is_batch_invariant is expected
        assert engine.settings.lines()[-1].startswith("Batch-invariant" if expected else "Not batch-invariant")


@pytest.mark.parametrize("name", ["gemma4_31b_small", "gemma4_e4b_small"])
def test_company_changes_no_bit_of_quantized_keys(name: str, tiny_model: Callable[[str], TinyModel]) -> None:
    tiny = tiny_model(name)
    config = ModelConfig(model=str(tiny.folder), device="cuda", max_model_len=512, dtype="bfloat16")
    model = load_model(config, arithmetic=BATCH_INVARIANT).model
    requests = draw_requests(tiny.window, model.spec.vocab_size, seed=len(name))
    dtype = "int8_per_token_head"
    solo = make_engine(model, enable_prefix_caching=False, overlapped=False, kv_dtype=dtype)
    expected = answers_alone(solo, requests)
    company = Company(16, num_batches=6)
    engine = make_engine(model, max_num_batched_tokens=16, graph_sizes=GRAPH_SIZES, kv_dtype=dtype)
    check_batches(engine, company, requests, expected, seed=name)
