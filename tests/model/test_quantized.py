"""Checkpoints of every quantized format hold the numbers that their formulas say, in as few bytes, and run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from facet.config import ModelConfig
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.layers.linear import Linear
from facet.layers.quantized_weight import PartsWeight, QuantizedWeight
from facet.layers.weight import DenseWeight, Weight
from facet.model.gemma import Gemma
from facet.model.loader import load_model, memory_needed
from facet.model.weight_map import tensor_targets
from tests.model.paged_model import PagedSequence, load
from tests.model.quantized_files import VARIANTS, config_of, tensors_of, write_variant
from tests.tiny_checkpoints import write_checkpoint, write_config

PROMPT = [2, 3, 60, 5, 5, 17, 42, 63, 8, 9, 11, 30, 31, 32]  # past the window of six

# How products with the matrices of each variant round their inputs.
ROUNDING = {
    "int8 w8a8": "int8_token",
    "int8 w8a8 zero points": "int8_token",
    "int8 static": "int8_static",
    "fp8 dynamic": "fp8_token",
    "mixed": "fp8_token",
    "fp8 experts": "fp8_token",
    "fp8 static": "fp8_static",
    "fp8 blocks": "fp8_group",
    "fp8 cache scales": "fp8_token",
    "fp8 of transformers": "fp8_group",
    "fp8 of transformers, one scale": "fp8_static",
    "modelopt fp8": "fp8_static",
    "modelopt mixed": "fp8_static",
    "gemma mobile": "int8_static",
}


def values(weight: Weight) -> Tensor:
    if isinstance(weight, DenseWeight):
        return weight.values.float()
    if isinstance(weight, QuantizedWeight):
        return weight.matrix.values()
    assert isinstance(weight, PartsWeight)
    return torch.cat([values(part) for part in weight.parts if isinstance(part, Weight)], dim=-2)


def round_nothing(model: Gemma) -> None:
    """Products of the weights alone: a rounded input may fall on another code for the last bit of a sum."""
    for module in model.modules():
        if isinstance(module, QuantizedWeight):
            module.format = replace(module.format, rounding=None, rounds_outputs=False)


@pytest.mark.parametrize("name", VARIANTS)
def test_reads_the_numbers_and_computes_with_them(name: str, tmp_path: Path) -> None:
    dense = write_variant(tmp_path, VARIANTS[name])
    loaded = load(tmp_path / "quantized", dtype="float32")
    linears = {place: module for place, module in loaded.model.named_modules() if isinstance(module, Linear)}
    for target in tensor_targets(loaded.spec):
        if target.place not in linears:
            continue
        linear = linears[target.place]
        rows = linear._rows(slice(None) if target.part is None else slice(target.part, target.part + 1))
        got = values(linear.weight)[..., rows, :]
        expected = dense[target.name if target.name == "lm_head.weight" else f"model.{target.name}"]
        if (
            "nvfp4" in name or name == "modelopt mixed"
        ):  # the scale of the whole matrix is a divisor in the file and a factor here
            assert torch.allclose(got, expected, rtol=2**-22, atol=0)
        else:
            assert torch.equal(got, expected)
    quantized = [module for module in loaded.model.modules() if isinstance(module, QuantizedWeight)]
    assert quantized
    found = {module.format.rounding for module in quantized} - {None}
    assert found == ({ROUNDING[name]} if name in ROUNDING else set())
    assert any(isinstance(module, PartsWeight) for module in loaded.model.modules()) is (
        name in ("int4 partly", "int4 g_idx", "gptq v1 order", "int4 down of experts alone")
        or "static" in ROUNDING.get(name, "")
    )
    round_nothing(loaded.model)
    got = PagedSequence(loaded.model, len(PROMPT)).run(PROMPT)
    expected = PagedSequence(load(tmp_path / "dense", dtype="float32").model, len(PROMPT)).run(PROMPT)
    assert (got - expected).abs().max() <= 2e-4 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize(
    "name", ["int4 groups of 32", "int4 zero points", "int4 experts split", "nvfp4", "gemma mobile"]
)
def test_takes_the_bytes_that_were_counted(name: str, tmp_path: Path) -> None:
    write_variant(tmp_path, VARIANTS[name])
    loaded = load(tmp_path / "quantized", dtype="float32")
    tensors = (*loaded.model.parameters(), *loaded.model.buffers())
    formats = loaded.formats
    assert memory_needed(loaded.spec, loaded.context_length, torch.float32, formats) == sum(t.nbytes for t in tensors)
    for target in tensor_targets(loaded.spec):
        if target.name in formats:
            bits = 8 * formats[target.name].num_bytes(target.shape) / target.num_values
            assert bits <= 8 * 1.2 if formats[target.name].code_bits == 8 else bits <= 5.3


@pytest.mark.parametrize("name", ["int4 groups of 32", "fp8 dynamic", "int8 w8a8"])
def test_other_rows_change_no_bit(name: str, tmp_path: Path) -> None:
    """A prompt at once or in pieces has the same logits, bit for bit: rounding looks at no other row."""
    write_variant(tmp_path, VARIANTS[name])
    config = ModelConfig(model=str(tmp_path / "quantized"), device="cpu", dtype="float32")
    model = load_model(config, arithmetic=BATCH_INVARIANT).model
    alone = PagedSequence(model, len(PROMPT)).run(PROMPT)
    in_parts = PagedSequence(model, len(PROMPT))
    assert torch.equal(
        torch.cat([in_parts.run(PROMPT[:3]), in_parts.run(PROMPT[3:12]), in_parts.run(PROMPT[12:])]), alone
    )


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("int4 groups of 32", {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}),
        ("modelopt fp8", {"kv_cache_quant_algo": "FP8"}),
    ],
)
def test_says_of_a_config_what_it_does_not_use(name: str, fields: dict[str, object], tmp_path: Path) -> None:
    """A checkpoint may ask for a KV cache of eight bits without scales for it, or be a config alone."""
    variant = VARIANTS[name]
    config = config_of(variant) | {"quantization_config": variant.config | fields}
    loaded = load(write_config(tmp_path, config), dtype="float32", load_format="dummy")
    assert "scales for a KV cache of eight bits, which are not used" in loaded.lines()[-1]


def test_says_what_it_does_not_use(tmp_path: Path) -> None:
    write_variant(tmp_path, VARIANTS["fp8 cache scales"])
    format_line, note = load(tmp_path / "quantized", dtype="float32").lines()
    assert "Weights: fp8, a scale for each row, inputs rounded to fp8 token by token" in format_line
    assert "scales for a KV cache of eight bits, which are not used" in note
    assert load(tmp_path / "dense", dtype="float32").lines() == ()


def test_float16_becomes_a_type_that_holds_activations(tmp_path: Path) -> None:
    """AWQ files are float16, in which Gemma overflows."""
    variant = VARIANTS["awq"]
    stored, _ = tensors_of(variant, config_of(variant))
    half = {name: t.half() if t.dtype == torch.bfloat16 else t for name, t in stored.items()}
    folder = write_checkpoint(tmp_path, config_of(variant) | {"quantization_config": variant.config}, half)
    assert load(folder).model.placement.dtype in (torch.bfloat16, torch.float32)
    assert load(folder, dtype="float16").model.placement.dtype == torch.float16  # asked for by name


def test_modelopt_may_keep_its_config_in_a_file_of_its_own(tmp_path: Path) -> None:
    variant = VARIANTS["modelopt fp8"]
    write_variant(tmp_path, variant)
    folder = tmp_path / "quantized"
    inner = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": inner}))
    write_config(folder, config_of(variant))
    assert {format.codes for format in load(folder, dtype="float32").formats.values()} == {"fp8"}
