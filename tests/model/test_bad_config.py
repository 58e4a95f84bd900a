"""A config.json that is wrong, contradicts itself or is absurd: one clear line that names the field, and at once."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facet.errors import CheckpointError, ConfigError, UnsupportedModelError, UserError
from facet.model.config_fields import read_config_file
from facet.model.families import ARCHITECTURES, read_model_spec
from tests.published_configs import FULL, PUBLISHED, SLIDING, Config, published

LONGEST_MESSAGE = 700  # characters: a line that fits a screen or two, not a dump of the file


def refusal(config: Config) -> str:
    with pytest.raises(UserError) as caught:
        read_model_spec(config)
    message = str(caught.value)
    check_message(message)
    return message


def check_message(message: str) -> None:
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) <= LONGEST_MESSAGE


def changed(name: str, **text: Any) -> Config:
    """A published config with some fields of its text part replaced."""
    config = published(name)
    config.get("text_config", config).update(text)
    return config


class TestArchitectures:
    @pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma2ForCausalLM", "Gemma4AssistantForCausalLM", ""])
    def test_an_unknown_one_is_answered_with_the_list(self, name: str) -> None:
        with pytest.raises(UnsupportedModelError) as caught:
            read_model_spec({**published("Gemma 4 31B"), "architectures": [name]})
        assert all(known in str(caught.value) for known in (name, *ARCHITECTURES))

    @pytest.mark.parametrize("model_type", ["llama", None, 7, [], {}])
    def test_so_is_an_unknown_model_type_without_architecture(self, model_type: Any) -> None:
        message = refusal({"model_type": model_type})
        assert all(known in message for known in ARCHITECTURES)

    def test_an_empty_config_is_no_model(self) -> None:
        assert "names no architecture" in refusal({})

    @pytest.mark.parametrize("value", ["Gemma4ForCausalLM", [], [3], {}, 5, [None]])
    def test_architectures_of_another_type(self, value: Any) -> None:
        assert "architectures" in refusal({**published("Gemma 4 31B"), "architectures": value})

    def test_beside_another_model_type(self) -> None:
        message = refusal({**published("Gemma 4 31B"), "model_type": "gemma3"})
        assert "contradicts itself" in message
        assert "Gemma4ForConditionalGeneration" in message
        assert "gemma3" in message

    def test_beside_a_text_config_of_another_type(self) -> None:
        assert "contradicts itself" in refusal(changed("Gemma 4 31B", model_type="gemma3n_text"))

    def test_a_long_or_broken_name_is_shortened_into_one_line(self) -> None:
        refusal({**published("Gemma 4 31B"), "architectures": ["x\ny" * 1000]})
        refusal({**published("Gemma 4 31B"), "model_type": "x\ny" * 1000})


# Base config, changed fields of the text part, and what the one line must say.
CONTRADICTIONS: dict[str, tuple[str, Config, tuple[str, ...]]] = {
    "layer list too short": ("Gemma 4 31B", {"layer_types": [FULL]}, ("layer_types", "1 ", "60")),
    "layer list too long": ("Gemma 4 31B", {"num_hidden_layers": 59}, ("layer_types", "60", "59")),
    "layer list with a stranger": ("Gemma 3 4B", {"layer_types": ["linear"] * 34}, ("layer_types", SLIDING, FULL)),
    "heads not a multiple": ("Gemma 4 E4B", {"num_key_value_heads": 3}, ("8 query heads", "3 key-value heads")),
    "global heads not a multiple": ("Gemma 4 31B", {"num_global_key_value_heads": 5}, ("32", "5")),
    "odd head": ("Gemma 3 4B", {"head_dim": 255}, ("255", "even")),
    "all layers share": ("Gemma 4 E4B", {"num_kv_shared_layers": 42}, ("num_kv_shared_layers", "42")),
    "more layers share than there are": ("Gemma 4 E4B", {"num_kv_shared_layers": 99}, ("num_kv_shared_layers", "99")),
    "nobody to share with": ("Gemma 4 E4B", {"num_kv_shared_layers": 40}, ("Layer 5", "global")),
    "sharing with other heads": (
        "Gemma 4 E4B",
        {"per_layer_config": {"41": {"num_key_value_heads": 1}}},
        ("Layer 41", "layer 23"),
    ),
    "heads of several sizes in one kind": (
        "Gemma 4 31B",
        {"per_layer_config": {"5": {"head_dim": 512}}},
        ("head_dim", "256", "512", "global"),
    ),
    "override of a layer that is not": ("Gemma 4 31B", {"per_layer_config": {"60": {"head_dim": 2}}}, ("60",)),
    "override under no number": ("Gemma 4 31B", {"per_layer_config": {"²": {"head_dim": 2}}}, ("²",)),
    "override of a strange field": (
        "Gemma 4 31B",
        {"per_layer_config": {"05": {"window": 2}}},
        ("per_layer_config", "window"),
    ),
    "override of another type": ("Gemma 4 31B", {"per_layer_config": {"05": 3}}, ("per_layer_config", "05")),
    "widths for other layers": ("Gemma 3n E4B", {"intermediate_size": [8] * 34}, ("intermediate_size", "34", "35")),
    "sparsity for other layers": (
        "Gemma 3n E4B",
        {"activation_sparsity_pattern": [0.5]},
        ("activation_sparsity_pattern", "1 ", "35"),
    ),
    "sparsity of everything": (
        "Gemma 3n E4B",
        {"activation_sparsity_pattern": [1.0] * 35},
        ("activation_sparsity_pattern",),
    ),
    "a fraction of a neuron": ("Gemma 4 31B", {"intermediate_size": 10.5}, ("intermediate_size", "10.5")),
    "no neurons": ("Gemma 4 31B", {"intermediate_size": 0}, ("intermediate_size",)),
    "more experts chosen than there are": ("Gemma 4 26B-A4B", {"top_k_experts": 129}, ("top_k_experts", "129", "128")),
    "experts without a number": ("Gemma 4 26B-A4B", {"num_experts": None}, ("num_experts", "missing")),
    "experts without a width": ("Gemma 4 26B-A4B", {"moe_intermediate_size": None}, ("moe_intermediate_size",)),
    "rope of another kind": ("Gemma 3 4B", {"rope_scaling": {"rope_type": "yarn", "factor": 2}}, ("yarn", "linear")),
    "rope scaled by nothing": ("Gemma 3 4B", {"rope_scaling": {"rope_type": "linear"}}, ("factor",)),
    "rope scaling of another type": ("Gemma 3 4B", {"rope_scaling": "linear"}, ("rope_scaling",)),
    "rope of a stranger": ("Gemma 4 31B", {"rope_parameters": {"rope_theta": 1e4}}, ("rope_parameters", "rope_theta")),
    "rope partly default": (
        "Gemma 4 31B",
        {"rope_parameters": {FULL: {"rope_type": "default", "partial_rotary_factor": 0.25}}},
        ("partial_rotary_factor", "0.25"),
    ),
    "rope more than whole": (
        "Gemma 4 31B",
        {"rope_parameters": {FULL: {"rope_type": "proportional", "partial_rotary_factor": 1.5}}},
        ("partial_rotary_factor", "1.5"),
    ),
    "another activation": ("Gemma 4 31B", {"hidden_activation": "silu"}, ("hidden_activation", "silu")),
    "biases": ("Gemma 4 31B", {"attention_bias": True}, ("attention_bias",)),
    "capped attention": ("Gemma 3 4B", {"attn_logit_softcapping": 50.0}, ("attn_logit_softcapping", "50")),
    "an encoder": ("Gemma 3 270M", {"use_bidirectional_attention": True}, ("use_bidirectional_attention",)),
    "another encoder": ("Gemma 4 31B", {"use_bidirectional_attention": "all"}, ("use_bidirectional_attention",)),
    "another active stream": ("Gemma 3n E4B", {"altup_active_idx": 1}, ("altup_active_idx",)),
    "uncorrected streams": ("Gemma 3n E4B", {"altup_correct_scale": False}, ("altup_correct_scale",)),
    "one stream": ("Gemma 3n E4B", {"altup_num_inputs": 1}, ("altup_num_inputs", "at least 2")),
    "3n without per-layer inputs": (
        "Gemma 3n E4B",
        {"hidden_size_per_layer_input": 0},
        ("hidden_size_per_layer_input",),
    ),
    "Gemma 3 with shared keys": ("Gemma 3 4B", {"num_kv_shared_layers": 4}, ("num_kv_shared_layers", "Gemma 3")),
    "Gemma 3 with merged values": ("Gemma 3 4B", {"attention_k_eq_v": True}, ("attention_k_eq_v",)),
    "Gemma 3 with experts": ("Gemma 3 4B", {"enable_moe_block": True}, ("enable_moe_block",)),
    "Gemma 3 with per-layer inputs": (
        "Gemma 3 4B",
        {"hidden_size_per_layer_input": 8},
        ("hidden_size_per_layer_input",),
    ),
    "3n with merged values": ("Gemma 3n E4B", {"attention_k_eq_v": True}, ("attention_k_eq_v",)),
    "3n with experts": ("Gemma 3n E4B", {"enable_moe_block": True}, ("enable_moe_block",)),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_contradiction_is_named(what: str) -> None:
    name, text, words = CONTRADICTIONS[what]
    message = refusal(changed(name, **text))
    assert all(word in message for word in words), message


INTEGERS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "sliding_window",
    "max_position_embeddings",
    "intermediate_size",
)
NUMBERS = ("rms_norm_eps", "final_logit_softcapping", "query_pre_attn_scalar")
ABSURD: tuple[Any, ...] = (-1, 0, 10**400, "512", "", True, [], {}, [1], math.nan, math.inf, -math.inf)


@pytest.mark.parametrize("value", [*ABSURD, 10**12, 2.5], ids=lambda value: f"{value!r:.12}")
@pytest.mark.parametrize("field", INTEGERS)
def test_absurd_counts(field: str, value: Any) -> None:
    assert field in refusal(changed("Gemma 3 4B", **{field: value}))


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: f"{value!r:.12}")
@pytest.mark.parametrize("field", NUMBERS)
def test_absurd_numbers(field: str, value: Any) -> None:
    assert field in refusal(changed("Gemma 3 4B", **{field: value}))


@pytest.mark.parametrize("num_layers", [10**5, 10**9, 10**18])
def test_a_billion_layers_are_refused_before_they_are_listed(num_layers: int) -> None:
    assert "num_hidden_layers" in refusal({"model_type": "gemma4_text", "num_hidden_layers": num_layers})


@pytest.mark.parametrize("value", [-1, "1", [1, None], [[1]], 1.5, True])
def test_absurd_token_ids(value: Any) -> None:
    assert "eos_token_id" in refusal({**changed("Gemma 3 4B"), "eos_token_id": value})


@pytest.mark.parametrize("value", [[], "gemma", 3, True])
def test_a_text_config_of_another_type(value: Any) -> None:
    assert "text_config" in refusal({**published("Gemma 3 4B"), "text_config": value})


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**9, 10**400, -1, 0]),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers() | st.text(max_size=3) | st.floats(), max_size=3),
    st.sampled_from(
        [[SLIDING], [FULL, SLIDING], [[]], [{}], [SLIDING] * 100_000, {"factor": []}, {FULL: 3}, {FULL: {}}]
    ),
    st.dictionaries(
        st.text(max_size=3) | st.sampled_from(["05", FULL, "rope_type"]), st.integers() | st.text(), max_size=2
    ),
)
KNOWN_FIELDS = sorted(
    {field for config in PUBLISHED.values() for field in {**config, **config.get("text_config", {})}}
    | {"per_layer_config", "quantization_config", "attention_k_eq_v", "activation_sparsity_pattern"}
)


@settings(max_examples=400)
@given(
    name=st.sampled_from(list(PUBLISHED)),
    top=st.dictionaries(st.sampled_from(KNOWN_FIELDS), JUNK, max_size=1),
    text=st.dictionaries(st.sampled_from(KNOWN_FIELDS), JUNK, max_size=2),
)
def test_whatever_stands_in_a_field_there_is_a_spec_or_one_line(name: str, top: Config, text: Config) -> None:
    config = changed(name, **text) | top
    try:
        spec = read_model_spec(config)
    except UserError as error:
        check_message(str(error))
    else:
        assert spec.num_layers >= 1
        assert all(layer.mlp_width >= 1 and layer.head_dim >= 2 for layer in spec.layers)


class TestTheFile:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"{'a': 1}",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"vocab_size": ' + b"9" * 5000 + b"}",
            b"\x00" * 100,
            b'{"a": "\x01"}',
        ],
        ids=lambda content: f"{content!r:.20}",
    )
    def test_not_json(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "config.json"
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"config\.json cannot be read as JSON") as caught:
            read_config_file(path)
        check_message(str(caught.value))

    @pytest.mark.parametrize("value", [[], 3, "gemma", None])
    def test_json_but_no_object(self, tmp_path: Path, value: Any) -> None:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(value))
        with pytest.raises(CheckpointError, match="a config is a JSON object"):
            read_config_file(path)

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="does not exist"):
            read_config_file(tmp_path / "config.json")

    def test_a_folder_of_that_name(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").mkdir()
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_config_file(tmp_path / "config.json")

    def test_nan_passes_json_and_is_caught_by_the_field(self, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_text('{"model_type": "gemma4_text", "rms_norm_eps": NaN}')
        with pytest.raises(ConfigError, match="rms_norm_eps is nan"):
            read_model_spec(read_config_file(path))
