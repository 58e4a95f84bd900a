"""Quantized weights on a GPU: the kernels against the definition, and answers that do not depend on company."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from facet.config import ModelConfig
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.layers.gpu_weights import ShuffledWeight
from facet.layers.moe import Experts
from facet.layers.quantized_weight import ProductWeight, QuantizedWeight
from facet.model.loader import load_model
from tests.engine.harness import make_engine
from tests.engine.random_company import Company, answers_alone, check_batches, draw_requests
from tests.model.gguf.test_models import for_k_quants, write_gguf
from tests.model.quantized_files import MOE, VARIANTS, wide, write_variant
from tests.tiny_models import TinyModel

GRAPH_SIZES = (1, 2, 4, 8)
PIECE_SIZES = (16, 48)
FAMILIES = ("gemma4_31b_small", "gemma4_e4b_small")
CASES = [
    *((name, kind) for name in FAMILIES for kind in ("fp8", "int8", "int4")),
    *(("26b_few_experts", kind) for kind in ("fp8", "int8")),
]


@pytest.mark.parametrize(("name", "quantization"), CASES)
def test_company_changes_no_bit(name: str, quantization: str, tiny_model: Callable[[str], TinyModel]) -> None:
    tiny = tiny_model(name)
    check_company(ModelConfig(model=str(tiny.folder), quantization=quantization), tiny.window, name)


@pytest.mark.parametrize(
    ("name", "type"),
    [("Gemma 4 31B", "Q8_0"), (MOE, "Q8_0"), *(("Gemma 4 31B", type) for type in ("Q4_K", "Q5_K", "Q6_K"))],
)
def test_company_changes_no_bit_of_a_gguf_file(name: str, type: str, tmp_path: Path) -> None:
    """Experts are of a format without kernels of its own."""
    config = (for_k_quants if type.endswith("K") else wide)(name) | {"max_position_embeddings": 512}
    write_gguf(tmp_path / "m.gguf", config, type)
    check_company(ModelConfig(model=str(tmp_path / "m.gguf")), int(config["sliding_window"]), name)


def check_company(config: ModelConfig, window: int, name: str) -> None:
    config = replace(config, device="cuda", max_model_len=512, dtype="bfloat16")
    model = load_model(config, arithmetic=BATCH_INVARIANT).model
    weights = [module for module in model.modules() if isinstance(module, ProductWeight | Experts)]
    assert weights
    assert all(weight.has_kernels for weight in weights)
    requests = draw_requests(window, model.spec.vocab_size, seed=len(name))
    solo = make_engine(model, enable_prefix_caching=False, overlapped=False, fast_prefill=False, kv_dtype="bfloat16")
    expected = answers_alone(solo, requests)
    company = Company(16, num_batches=6)
    engine = make_engine(
        model, max_num_batched_tokens=16, graph_sizes=GRAPH_SIZES, piece_sizes=PIECE_SIZES, kv_dtype="bfloat16"
    )
    check_batches(engine, company, requests, expected, seed=name)


@pytest.mark.parametrize("quantization", ["fp8", "int8", "int4"])
def test_products_are_those_of_the_definition(quantization: str, tiny_model: Callable[[str], TinyModel]) -> None:
    """Every matrix of a model, by kernels and by the reference of a processor, for one row, some and many."""
    check_products(ModelConfig(model=str(tiny_model(FAMILIES[1]).folder), quantization=quantization))


def test_products_of_a_file_in_nvfp4(tmp_path: Path) -> None:
    write_variant(tmp_path, VARIANTS["nvfp4"])
    check_products(ModelConfig(model=str(tmp_path / "quantized")))


@pytest.mark.parametrize("type", ["Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_products_of_a_gguf_file(type: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", for_k_quants("Gemma 4 31B"), type)
    check_products(ModelConfig(model=str(tmp_path / "m.gguf")))


def check_products(config: ModelConfig) -> None:
    config = replace(config, device="cuda", dtype="bfloat16")
    model = load_model(config).model
    plain = load_model(replace(config, device="cpu", dtype="float32")).model
    matrices = [module for module in model.modules() if isinstance(module, QuantizedWeight)]
    references = [module for module in plain.modules() if isinstance(module, QuantizedWeight)]
    assert len(matrices) == len(references) > 4
    for weight, reference in zip(matrices, references, strict=True):
        for num_rows in (1, 7, 40, 200):
            x = torch.randn(num_rows, weight.matrix.num_inputs).to(torch.bfloat16)
            # Codes of a gate and what it opens lie in an order that has no other product.
            is_gated = isinstance(weight, ShuffledWeight) and weight.is_gated
            expected = (reference.geglu_linear if is_gated else reference.linear)(x.float())
            got = (weight.geglu_linear if is_gated else weight.linear)(x.cuda()).cpu().float()
            assert (got - expected).norm() <= 0.01 * expected.norm()
