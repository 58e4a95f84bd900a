"""Formats and bytes of weights, whole and quantized, against counting by hand; and configs of quantized checkpoints."""

from typing import Any

import pytest
import torch

from facet.errors import ConfigError
from facet.model.families import read_model_spec
from facet.model.quantized.choose import read_scheme
from facet.model.shard import shard_of
from facet.model.weight_formats import FLAGS, OneFormat, choose_weight_format, expected_formats, weight_bytes
from facet.model.weight_map import tensor_targets
from tests.published_configs import PUBLISHED, published

SPECS = {name: read_model_spec(config) for name, config in PUBLISHED.items()}
SPEC = SPECS["Gemma 4 31B"]
NUM_VALUES = sum(target.num_values for target in tensor_targets(SPEC))
NUM_MATRIX_VALUES = NUM_VALUES - 262_144 * 5376  # all but the embedding, and norms


def test_unquantized_weights_are_their_values() -> None:
    found = weight_bytes(SPEC, {}, dtype=torch.bfloat16)
    norms = sum(target.num_values for target in tensor_targets(SPEC) if "norm" in target.name)
    assert found.unquantized == 2 * (NUM_VALUES - norms) + 4 * norms
    assert (found.quantized, found.line, found.main_format) == (0, "", None)


@pytest.mark.parametrize(
    ("name", "bits_per_value"), [("int4", 4 + 16 / 32), ("int8", 8), ("fp8", 8), ("nvfp4", 4 + 8 / 16)]
)
def test_quantized_weights_are_their_bits_and_scales(name: str, bits_per_value: float) -> None:
    found = weight_bytes(SPEC, expected_formats(SPEC, OneFormat(FLAGS[name])), dtype=torch.bfloat16)
    assert found.quantized == pytest.approx(NUM_MATRIX_VALUES * bits_per_value / 8, rel=2e-3)
    assert found.unquantized == pytest.approx(2 * 262_144 * 5376, rel=2e-3)
    assert f"{bits_per_value:.1f}" in found.line
    assert found.main_format == FLAGS[name]


def test_experts_are_quantized_and_routers_are_not() -> None:
    spec = SPECS["Gemma 4 26B-A4B"]
    formats = expected_formats(spec, OneFormat(FLAGS["int4"]))
    whole, small = (weight_bytes(spec, each, dtype=torch.bfloat16) for each in ({}, formats))
    assert small.total < 0.35 * whole.total
    router = sum(target.num_values for target in tensor_targets(spec) if ".router." in target.name)
    embedding = 262_144 * spec.hidden_size
    assert small.unquantized >= 2 * (router + embedding)


@pytest.mark.parametrize("name", ["Gemma 4 E2B", "Gemma 4 E4B", "Gemma 3n E4B"])
@pytest.mark.parametrize("flag", FLAGS)
def test_the_gates_of_per_layer_inputs_are_quantized(flag: str, name: str) -> None:
    """In four bits. Of all that has to do with per-layer inputs, streams and low-rank paths, these two of every layer
    alone."""
    spec = SPECS[name]
    formats = expected_formats(spec, OneFormat(FLAGS[flag]))
    others = {each for each in formats if not any(part in each for part in (".self_attn.", ".mlp."))}
    parts = ("per_layer_input_gate", "per_layer_projection") if FLAGS[flag].code_bits == 4 else ()
    assert others == {f"layers.{layer.index}.{part}.weight" for layer in spec.layers for part in parts}


def test_groups_that_do_not_divide_the_inputs_of_a_gate() -> None:
    """Matrices of attention and MLPs are refused; the 256 inputs of a gate's second matrix leave it as it is."""
    spec = SPECS["Gemma 4 E4B"]
    everything = read_scheme({"quantization_config": compressed(num_bits=4, type="int", group_size=128)})
    formats = expected_formats(spec, everything)
    assert formats["layers.0.per_layer_projection.weight"].scales.group == 128
    for source in (
        read_scheme({"quantization_config": compressed(num_bits=4, type="int", group_size=512)}),
        choose_weight_format("int4", 512, {}),
    ):
        wide = expected_formats(spec, source)
        assert "layers.0.per_layer_projection.weight" not in wide
        assert wide["layers.0.per_layer_input_gate.weight"].scales.group == 512


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "3n" not in name and "270M" not in name])
def test_two_gpus_hold_half_each_and_a_little_more(name: str) -> None:
    whole, half = (weight_bytes(shard_of(SPECS[name], n), {}, dtype=torch.bfloat16).total for n in (1, 2))
    assert whole / 2 <= half < 0.55 * whole


def test_key_heads_are_divided_or_kept_whole() -> None:
    """12B has eight and one: the one is on each of the two GPUs."""
    layers = shard_of(SPECS["Gemma 4 12B"], 2).layers
    assert {(layer.attention, layer.num_heads, layer.num_kv_heads) for layer in layers} == {
        ("sliding", 8, 4),
        ("global", 8, 1),
    }
    with pytest.raises(ConfigError, match="--tensor-parallel-size 3 does not divide"):
        shard_of(SPEC, 3)
    assert shard_of(SPEC, 1) is SPEC


def compressed(**weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("section", "codes", "group", "scales", "has_zeros"),
    [
        (compressed(num_bits=4, type="int", strategy="group", group_size=32), "int4", 32, "bfloat16", False),
        (compressed(num_bits=4, type="int", group_size=128, symmetric=False), "uint4", 128, "bfloat16", True),
        (compressed(num_bits=8, type="int", strategy="channel"), "int8", None, "bfloat16", False),
        (compressed(num_bits=8, type="int", group_size=-1), "int8", None, "bfloat16", False),
        (compressed(num_bits=8, type="float", strategy="channel"), "fp8", None, "bfloat16", False),
        (
            compressed(num_bits=4, type="float", strategy="tensor_group", group_size=16),
            "fp4",
            16,
            "float8_e4m3fn",
            False,
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "uint4", 128, "float16", True),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64, "sym": True}, "int8", 64, "float16", False),
        ({"quant_method": "fp8"}, "fp8", None, "float32", False),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4", 16, "float8_e4m3fn", False),
        ({"quant_method": "gemma"}, "int4", None, "float32", False),
    ],
    ids=str,
)
def test_configs_of_quantized_checkpoints(
    section: dict[str, Any], codes: str, group: int | None, scales: str, has_zeros: bool
) -> None:
    for config in (
        {**published("Gemma 4 31B"), "quantization_config": section},
        {"text_config": {"quantization_config": section}},
    ):
        formats = expected_formats(SPEC, read_scheme(config))
        found = formats["layers.0.mlp.up_proj.weight"]
        assert (found.codes, found.scales.group, found.scales.dtype, found.has_zeros) == (
            codes,
            group,
            scales,
            has_zeros,
        )
        assert "embed_tokens.weight" not in formats


def test_what_a_checkpoint_leaves_unquantized_is_counted_so() -> None:
    section = compressed(num_bits=4, type="int", group_size=32)

    def unquantized() -> int:
        formats = expected_formats(SPEC, read_scheme({"quantization_config": section}))
        return weight_bytes(SPEC, formats, dtype=torch.bfloat16).unquantized

    all_layers = unquantized()
    for ignored in ("model.language_model.layers.0.mlp.up_proj", r"re:.*layers\.0\.mlp\.up_proj"):
        section["ignore"] = ["lm_head", "re:.*vision.*", ignored]
        assert unquantized() - all_layers == 2 * 5376 * 21_504
    section["ignore"] = ["model.language_model.layers.0.mlp"]  # names a parent, and so nothing
    assert unquantized() == all_layers


def test_the_best_target_of_a_group_counts() -> None:
    """A name before a pattern before a class, whatever the order of the groups."""
    eight, four = (dict(num_bits=bits, type="int", strategy="channel") for bits in (8, 4))
    groups = {
        "all": {"targets": ["Linear"], "weights": four},
        "some": {"targets": ["re:.*mlp.*", "model.layers.1.self_attn.q_proj"], "weights": eight},
        "one": {"targets": ["model.layers.1.mlp.up_proj"], "weights": four},
    }
    scheme = read_scheme({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}})
    formats = expected_formats(SPEC, scheme)
    codes = {name: formats[f"layers.{name}.weight"].codes for name in ("0.mlp.up_proj", "1.mlp.up_proj")}
    assert codes == {"0.mlp.up_proj": "int8", "1.mlp.up_proj": "int4"}
    assert formats["layers.1.self_attn.q_proj.weight"].codes == "int8"
    assert formats["layers.1.self_attn.o_proj.weight"].codes == "int4"


def test_flags_go_over_the_config() -> None:
    config = {"quantization_config": {"quant_method": "fp8"}}
    chosen = choose_weight_format("auto", None, config)
    assert chosen is not None
    assert expected_formats(SPEC, chosen)["layers.0.mlp.up_proj.weight"].codes == "fp8"
    assert choose_weight_format("none", None, config) is None
    other = choose_weight_format("int4", 64, config)
    assert other is not None
    assert expected_formats(SPEC, other)["layers.0.mlp.up_proj.weight"].scales.group == 64
    assert choose_weight_format("auto", None, {}) is None
    for asked, size in (("auto", 32), ("int4", 0), ("none", 32)):
        with pytest.raises(ConfigError, match=f"--weight-group-size is {size}"):
            choose_weight_format(asked, size, {})


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (compressed(num_bits=4, type="int", group_size=1000), "inputs, which groups of 1000 do not divide"),
        ({**compressed(num_bits=4, type="int", group_size=32), "ignore": ["re:("]}, "is not a pattern"),
        ({"quant_method": "awq", "modules_to_not_convert": "lm_head"}, "must be a list of names"),
        (7, "quantization_config is 7"),
    ],
    ids=str,
)
def test_what_cannot_be_counted_is_refused(section: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        expected_formats(SPEC, read_scheme({"quantization_config": section}))
