"""A GGUF file is a whole model: config, weights, tokenizer and answers are those of the folder it was made of."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from facet import LLM, SamplingParams
from facet.bundled_model import FOLDER
from facet.config import ModelConfig
from facet.errors import CheckpointError
from facet.layers.linear import Linear
from facet.layers.quantized_weight import QuantizedWeight
from facet.model.batch_invariance import with_batch_invariance
from facet.model.config_fields import ConfigFields
from facet.model.families import read_model_spec
from facet.model.gguf.scheme import GgufScheme
from facet.model.gguf.types import BY_NAME
from facet.model.hub import local_folder
from facet.model.loader import memory_needed
from tests.model.gguf.writing import model_file, tokenizer_metadata
from tests.model.paged_model import PagedSequence, load
from tests.tiny_checkpoints import SHRUNK, random_tensors, write_checkpoint
from tools.bundled_model.text_only import text_config, text_tensors, write_text_model

PROMPT = [2, 3, 60, 5, 5, 17, 42, 63, 8, 9, 11, 30]
# Widths that whole blocks of 32 fit.
WIDER = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 16, "moe_intermediate_size": 32}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def wide(name: str) -> dict[str, object]:
    config = SHRUNK[name]
    changes = {field: value for field, value in WIDER.items() if field in config}
    if config.get("hidden_size_per_layer_input"):
        changes["hidden_size_per_layer_input"] = 32
    if "gemma3" in str(config["model_type"]) and "3n" not in str(config["model_type"]):
        changes["query_pre_attn_scalar"] = 16
    return {**config, **changes}


def write_gguf(path: Path, config: dict[str, object], type: str, **options: bool) -> dict[str, torch.Tensor]:
    data, dense = model_file(config, random_tensors(config), lambda name: type, tokenizer_metadata(FOLDER), **options)
    path.write_bytes(data)
    return dense


@pytest.mark.parametrize("name", SHRUNK)
def test_the_spec_is_that_of_the_config(name: str, tmp_path: Path) -> None:
    config = wide(name)
    write_gguf(tmp_path / "m.gguf", config, "F32")
    folder = local_folder(str(tmp_path / "m.gguf"))
    got = read_model_spec(json.loads((folder / "config.json").read_text()))
    expected = read_model_spec(config)
    same = {
        field: getattr(got, field)
        for field in ("norm_weights_offset", "checkpoint_dtype", "eos_token_ids", "bidirectional_image_layers")
    } | {"architecture": got.architecture, "media_token_ids": got.media_token_ids}
    layers = tuple(
        replace(layer, mlp_sparsity=round(layer.mlp_sparsity, 6), rotary=their.rotary)
        for layer, their in zip(expected.layers, got.layers, strict=True)
    )
    assert replace(expected, **same, layers=layers, norm_eps=got.norm_eps) == got
    for layer, their in zip(expected.layers, got.layers, strict=True):
        assert layer.rotary == their.rotary
    assert got.norm_eps == pytest.approx(expected.norm_eps)


CASES = [
    ("Gemma 3 1B", "F16", False),
    ("Gemma 3 1B", "Q4_0", False),
    ("Gemma 3n E4B", "Q8_0", False),
    ("Gemma 3n E4B", "Q5_0", False),
    ("Gemma 4 E4B", "Q4_0", False),
    ("Gemma 4 E4B", "Q4_1", False),
    ("Gemma 4 31B", "BF16", False),
    ("Gemma 4 26B-A4B", "Q4_0", False),
    ("Gemma 4 26B-A4B", "Q8_0", True),
    ("Gemma 4 26B-A4B", "F32", True),
]


@pytest.mark.parametrize(("name", "type", "splits_experts"), CASES)
def test_computes_as_its_dequantized_self(name: str, type: str, splits_experts: bool, tmp_path: Path) -> None:
    config = wide(name)
    dense = write_gguf(tmp_path / "m.gguf", config, type, splits_experts=splits_experts)
    loaded = load(tmp_path / "m.gguf", dtype="float32")
    write_checkpoint(tmp_path / "dense", config, dense)
    got = PagedSequence(loaded.model, len(PROMPT)).run(PROMPT)
    expected = PagedSequence(load(tmp_path / "dense", dtype="float32").model, len(PROMPT)).run(PROMPT)
    assert (got - expected).abs().max() <= 2e-4 * max(1.0, float(expected.abs().max()))
    weights = [module.weight for module in loaded.model.modules() if isinstance(module, Linear)]
    assert any(isinstance(weight, QuantizedWeight) for weight in weights) is type.startswith("Q")
    tensors = (*loaded.model.parameters(), *loaded.model.buffers())
    counted = memory_needed(loaded.spec, loaded.context_length, torch.float32, loaded.formats)
    assert counted == sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("name", ["Gemma 4 E4B", "Gemma 3n E4B", "Gemma 4 26B-A4B"])
def test_a_checkpoint_made_for_q4_0_becomes_what_its_gguf_is(name: str, tmp_path: Path) -> None:
    """The same matrices in the same numbers. llama.cpp leaves these alone; tables may be of any type."""
    config, left_alone = wide(name), ("embed_tokens", "per_layer_model_projection", "altup", "laurel", "router")
    data, dense = model_file(
        config,
        random_tensors(config),
        lambda name: "F32" if any(part in name for part in left_alone) else "Q4_0",
        tokenizer_metadata(FOLDER),
    )
    (tmp_path / "m.gguf").write_bytes(data)
    write_checkpoint(tmp_path / "trained", config, dense)
    theirs = load(tmp_path / "m.gguf", dtype="float32")
    ours = load(tmp_path / "trained", dtype="float32", quantization="int4")
    assert set(ours.formats) == set(theirs.formats)
    weights = dict(theirs.model.named_modules())
    for place, weight in ours.model.named_modules():
        if isinstance(weight, QuantizedWeight):
            assert torch.equal(weight.matrix.values(), weights[place].matrix.values()), place


def test_a_link_to_a_file(tmp_path: Path) -> None:
    """As the hub keeps files: the name is that of the link, the contents lie elsewhere without a suffix."""
    write_gguf(tmp_path / "blob", wide("Gemma 3 1B"), "Q4_0")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "m.gguf").symlink_to(tmp_path / "blob")
    assert load(tmp_path / "folder", dtype="float32").formats


K_QUANTS = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2}


def for_k_quants(name: str) -> dict[str, Any]:
    """A model whose matrices have whole blocks of 256."""
    config = {**SHRUNK[name], **K_QUANTS, "layer_types": SHRUNK[name]["layer_types"][-2:], "query_pre_attn_scalar": 64}
    return {**config, "global_head_dim": 128} if "global_head_dim" in config else config


@pytest.mark.parametrize(("name", "type"), [("Gemma 3 1B", "Q4_K"), ("Gemma 4 31B", "Q5_K"), ("Gemma 3 1B", "Q6_K")])
def test_whole_models_in_k_quants(name: str, type: str, tmp_path: Path) -> None:
    config = for_k_quants(name)
    dense = write_gguf(tmp_path / "m.gguf", config, type)
    loaded = load(tmp_path / "m.gguf", dtype="float32")
    assert {format.line for format in loaded.formats.values()} == {BY_NAME[type].format.line}  # type: ignore[union-attr]
    write_checkpoint(tmp_path / "dense", config, dense)
    got = PagedSequence(loaded.model, len(PROMPT)).run(PROMPT)
    expected = PagedSequence(load(tmp_path / "dense", dtype="float32").model, len(PROMPT)).run(PROMPT)
    assert (got - expected).abs().max() <= 2e-4 * max(1.0, float(expected.abs().max()))


def write_bundled(path: Path, type: str) -> dict[str, torch.Tensor]:
    """The text model of it."""
    data, dense = model_file(
        text_config(FOLDER),
        text_tensors(FOLDER),
        lambda name: type if name.startswith("layers.") and "per_layer" not in name else "F16",
        {
            **tokenizer_metadata(FOLDER),
            "general.sampling.temp": 0.5,
            "general.sampling.top_k": 40,
        },
    )
    path.write_bytes(data)
    return dense


def answers(model: str) -> list[list[int]]:
    llm = LLM(model=model, device="cpu", dtype="float32", max_model_len=256, seed=0)
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    questions = ["What is the capital of France?", "Say hello.", "Name three colours."]
    outputs = llm.chat([[{"role": "user", "content": question}] for question in questions], greedy)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_the_bundled_model_answers_as_its_folder(tmp_path: Path) -> None:
    write_bundled(tmp_path / "facet.gguf", "F16")
    write_text_model(FOLDER, tmp_path / "text")
    folder = local_folder(str(tmp_path / "facet.gguf"))
    assert answers(str(tmp_path / "facet.gguf")) == answers(str(tmp_path / "text"))
    assert local_folder(str(tmp_path / "facet.gguf")) == folder, "unfolded once"
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["temperature"], generation["top_k"]) == (0.5, 40)
    assert sorted(generation["eos_token_id"]) == [1, 9, 16]
    assert (folder / "chat_template.jinja").read_text() == (FOLDER / "chat_template.jinja").read_text()


@pytest.mark.parametrize("type", ["Q4_0", "Q8_0"])
def test_the_bundled_model_in_few_bits(type: str, tmp_path: Path) -> None:
    dense = write_bundled(tmp_path / "facet.gguf", type)
    loaded = load(tmp_path / "facet.gguf", dtype="float32")
    write_checkpoint(tmp_path / "dense", text_config(FOLDER), dense)
    got = PagedSequence(loaded.model, len(PROMPT)).run(PROMPT)
    expected = PagedSequence(load(tmp_path / "dense", dtype="float32").model, len(PROMPT)).run(PROMPT)
    assert (got - expected).abs().max() <= 2e-4 * max(1.0, float(expected.abs().max()))


def test_scales_that_are_no_numbers_are_refused() -> None:
    block = torch.full((1, 34), 255, dtype=torch.uint8)  # its first two bytes are a NaN
    format = BY_NAME["Q8_0"].format
    assert format is not None
    with pytest.raises(CheckpointError, match="down_proj has scales that are no numbers"):
        GgufScheme(ConfigFields({})).read("down_proj", {"weight": block}, format)


def test_a_quantized_file_decides_whether_answers_are_batch_invariant(tmp_path: Path) -> None:
    """By what its matrices are kept in; one that is not quantized is like any other model."""
    for type, expected in (("F32", True), ("Q4_0", False), ("Q8_0", False)):
        write_gguf(tmp_path / f"{type}.gguf", wide("Gemma 4 31B"), type)
        config = ModelConfig(model=str(tmp_path / f"{type}.gguf"))
        assert with_batch_invariance(config, torch.device("cuda")).batch_invariant is expected, type
