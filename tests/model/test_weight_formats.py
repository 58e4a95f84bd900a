"""Bytes of weights, whole and quantized, against counting by hand; and configs of quantized checkpoints."""

from typing import Any

import pytest

from facet.errors import ConfigError
from facet.model.families import read_model_spec
from facet.model.shard import shard_of
from facet.model.weight_formats import (
    FORMATS,
    choose_weight_format,
    read_weight_format,
    weight_bytes,
    without_quantization,
)
from facet.model.weight_map import tensor_targets
from tests.published_configs import PUBLISHED, published

SPECS = {name: read_model_spec(config) for name, config in PUBLISHED.items()}
SPEC = SPECS["Gemma 4 31B"]
NUM_VALUES = sum(target.num_values for target in tensor_targets(SPEC))
NUM_MATRIX_VALUES = NUM_VALUES - 262_144 * 5376  # all but the embedding, and norms


def test_unquantized_weights_are_their_values() -> None:
    found = weight_bytes(SPEC, None, value_bytes=2)
    assert (found.quantized, found.unquantized) == (0, 2 * NUM_VALUES)


@pytest.mark.parametrize(
    ("name", "bits_per_value"), [("int4", 4 + 16 / 32), ("int8", 8), ("fp8", 8), ("nvfp4", 4 + 8 / 16)]
)
def test_quantized_weights_are_their_bits_and_scales(name: str, bits_per_value: float) -> None:
    found = weight_bytes(SPEC, FORMATS[name], value_bytes=2)
    assert found.quantized == pytest.approx(NUM_MATRIX_VALUES * bits_per_value / 8, rel=2e-3)
    assert found.unquantized == pytest.approx(2 * 262_144 * 5376, rel=2e-3)


def test_experts_are_quantized_and_routers_are_not() -> None:
    spec = SPECS["Gemma 4 26B-A4B"]
    whole, small = (weight_bytes(spec, each, value_bytes=2) for each in (None, FORMATS["int4"]))
    assert small.total < 0.35 * whole.total
    router = sum(target.num_values for target in tensor_targets(spec) if ".router." in target.name)
    embedding = 262_144 * spec.hidden_size
    assert small.unquantized >= 2 * (router + embedding)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "3n" not in name and "270M" not in name])
def test_two_gpus_hold_half_each_and_a_little_more(name: str) -> None:
    whole, half = (weight_bytes(shard_of(SPECS[name], n), None, value_bytes=2).total for n in (1, 2))
    assert whole / 2 <= half < 0.55 * whole


def test_key_heads_are_divided_or_kept_whole() -> None:
    """12B has eight and one: the one is on each of the two GPUs."""
    layers = shard_of(SPECS["Gemma 4 12B"], 2).layers
    assert {(layer.attention, layer.num_heads, layer.num_kv_heads) for layer in layers} == {
        ("sliding", 8, 4),
        ("global", 8, 1),
    }
    with pytest.raises(ConfigError, match="--gpus 3: the 16 key heads of layer 0 cannot be divided"):
        shard_of(SPEC, 3)
    assert shard_of(SPEC, 1) is SPEC


def compressed(**weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("section", "name", "group_size", "scale_bits", "zero_bits"),
    [
        (compressed(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True), "int4", 32, 16, 0),
        (compressed(num_bits=4, type="int", group_size=128, symmetric=False), "int4", 128, 16, 4),
        (compressed(num_bits=8, type="int", strategy="channel"), "int8", None, 16, 0),
        (compressed(num_bits=8, type="int", strategy="channel", group_size=-1), "int8", None, 16, 0),
        (compressed(num_bits=8, type="float", strategy="channel"), "fp8", None, 16, 0),
        (compressed(num_bits=4, type="float", strategy="tensor_group", group_size=16), "nvfp4", 16, 8, 0),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4", 128, 16, 4),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64, "sym": True}, "int8", 64, 16, 0),
        ({"quant_method": "fp8"}, "fp8", None, 32, 0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 16, 8, 0),
    ],
    ids=str,
)
def test_configs_of_quantized_checkpoints(
    section: dict[str, Any], name: str, group_size: int | None, scale_bits: int, zero_bits: int
) -> None:
    for config in (
        {**published("Gemma 4 31B"), "quantization_config": section},
        {"text_config": {"quantization_config": section}},
    ):
        found = read_weight_format(config)
        assert found is not None
        assert (found.name, found.group_size, found.scale_bits, found.zero_point_bits) == (
            name,
            group_size,
            scale_bits,
            zero_bits,
        )
        assert read_weight_format(without_quantization(config)) is None


def test_what_a_checkpoint_leaves_unquantized_is_counted_so() -> None:
    section = compressed(num_bits=4, type="int", group_size=32)
    all_layers = weight_bytes(SPEC, read_weight_format({"quantization_config": section}), value_bytes=2)
    for ignored in (
        "model.language_model.layers.0.mlp.up_proj",
        r"re:.*layers\.0\.mlp\.up_proj",
        "layers.0.mlp.up_proj",
    ):
        section["ignore"] = ["lm_head", "re:.*vision.*", ignored]
        found = weight_bytes(SPEC, read_weight_format({"quantization_config": section}), value_bytes=2)
        assert found.unquantized - all_layers.unquantized == 2 * 5376 * 21_504


def test_flags_go_over_the_config() -> None:
    config = {"quantization_config": {"quant_method": "fp8"}}
    assert choose_weight_format("auto", None, config) == FORMATS["fp8"]
    assert choose_weight_format("none", None, config) is None
    chosen = choose_weight_format("int4", 64, config)
    assert chosen is not None
    assert (chosen.name, chosen.group_size) == ("int4", 64)
    assert choose_weight_format("auto", None, {}) is None
    for asked, size in (("auto", 32), ("int4", 0)):
        with pytest.raises(ConfigError, match=f"--weight-group-size is {size}"):
            choose_weight_format(asked, size, {})


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes', which the plan cannot count.*--weight-format int4"),
        ({}, "quantized by '', which"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "'modelopt', which"),
        ({"quant_method": "gptq", "bits": 3}, "3-bit 'int'; the plan can count int4"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups"),
        ({"quant_method": "awq", "modules_to_not_convert": "lm_head"}, "must be a list of names"),
        (7, "quantization_config is 7"),
    ],
    ids=str,
)
def test_what_cannot_be_counted_is_refused(section: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_weight_format({"quantization_config": section or {"quant_method": ""}})


def test_a_broken_pattern_is_refused() -> None:
    section = {**compressed(num_bits=4, type="int", group_size=32), "ignore": ["re:("]}
    with pytest.raises(ConfigError, match="is not a pattern"):
        weight_bytes(SPEC, read_weight_format({"quantization_config": section}), value_bytes=2)
