"""Configs against the classes of transformers that wrote the published files, reading them back."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.model.families import read_model_spec
from facet.model_spec import LayerSpec, RotarySpec
from tests.published_configs import FULL, PUBLISHED, SLIDING, Config, text_only

CLASSES = {
    "gemma3_text": "Gemma3TextConfig",
    "gemma3n_text": "Gemma3nTextConfig",
    "gemma4_text": "Gemma4TextConfig",
    "gemma4_unified_text": "Gemma4UnifiedTextConfig",
}


def oracle_of(config: Config) -> Any:
    import transformers

    transformers.utils.logging.set_verbosity(40)  # errors only: it warns of every last layer it corrects
    text = config.get("text_config", config)
    return getattr(transformers, CLASSES[text["model_type"]])(**json.loads(json.dumps(text)))


def check_config(config: Config) -> None:
    oracle, spec = oracle_of(config), read_model_spec(config)
    assert spec.hidden_size == oracle.hidden_size
    assert spec.vocab_size == oracle.vocab_size
    assert spec.max_positions == oracle.max_position_embeddings
    assert spec.norm_eps == oracle.rms_norm_eps
    assert spec.logit_softcap == oracle.final_logit_softcapping
    assert spec.tied_embeddings == oracle.tie_word_embeddings
    width = getattr(oracle, "hidden_size_per_layer_input", 0)
    assert (spec.per_layer_input.width if spec.per_layer_input else 0) == width
    if spec.per_layer_input:
        assert spec.per_layer_input.vocab_size == oracle.vocab_size_per_layer_input
    if spec.altup:
        assert (spec.altup.num_streams, spec.altup.laurel_rank) == (oracle.altup_num_inputs, oracle.laurel_rank)
    assert spec.num_layers == oracle.num_hidden_layers
    assert [layer.attention for layer in spec.layers] == [
        {FULL: "global", SLIDING: "sliding"}[name] for name in oracle.layer_types
    ]
    assert spec.first_shared_layer == spec.num_layers - getattr(oracle, "num_kv_shared_layers", 0)
    for layer in spec.layers:
        heads = oracle.per_layer_config[layer.index] if oracle.is_heterogeneous else oracle
        assert (layer.num_kv_heads, layer.head_dim) == (heads.num_key_value_heads, heads.head_dim)
        check_layer(layer, oracle)


def check_layer(layer: LayerSpec, oracle: Any) -> None:
    sliding = layer.attention == "sliding"
    assert layer.num_heads == oracle.num_attention_heads
    assert layer.window == (oracle.sliding_window if sliding else None)
    width = oracle.intermediate_size
    width = width[layer.index] if isinstance(width, list) else width
    double = getattr(oracle, "use_double_wide_mlp", False) and not layer.owns_kv
    assert layer.mlp_width == width * (2 if double else 1)
    sparsity = getattr(oracle, "activation_sparsity_pattern", None)
    assert layer.mlp_sparsity == (sparsity[layer.index] if sparsity else 0.0)
    assert layer.values_are_keys == (not sliding and getattr(oracle, "attention_k_eq_v", False))
    if hasattr(oracle, "query_pre_attn_scalar"):
        assert layer.attention_scale == oracle.query_pre_attn_scalar**-0.5
    rope = oracle.rope_parameters[SLIDING if sliding else FULL]
    assert layer.rotary == RotarySpec(
        theta=rope["rope_theta"],
        rotated_fraction=rope.get("partial_rotary_factor", 1.0),
        factor=rope.get("factor", 1.0),
    )
    if layer.moe:
        chosen = (oracle.num_experts, oracle.top_k_experts, oracle.moe_intermediate_size)
        assert (layer.moe.num_experts, layer.moe.num_chosen, layer.moe.width) == chosen
    else:
        assert not getattr(oracle, "enable_moe_block", False)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name: str) -> None:
    check_config(PUBLISHED[name])


@pytest.mark.parametrize("model_type", CLASSES)
def test_defaults_alone(model_type: str) -> None:
    check_config({"model_type": model_type})


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_transformers_writes_today_is_read_the_same(name: str) -> None:
    """A checkpoint that was loaded and saved again has other fields and the same meaning."""
    saved = json.loads(oracle_of(PUBLISHED[name]).to_json_string(use_diff=False))
    again = read_model_spec({**saved, "architectures": text_only(name)["architectures"]})
    expected = read_model_spec(text_only(name))
    assert replace(again, eos_token_ids=(1, 106), checkpoint_dtype="bfloat16") == expected


@given(
    model_type=st.sampled_from(list(CLASSES)),
    num_layers=st.integers(1, 25),
    num_kv_heads=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([16, 64, 256]),
    k_eq_v=st.booleans(),
    data=st.data(),
)
def test_drawn(
    model_type: str, num_layers: int, num_kv_heads: int, head_dim: int, k_eq_v: bool, data: st.DataObject
) -> None:
    config: Config = {
        "model_type": model_type,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 8,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "hidden_size": 8 * data.draw(st.integers(1, 4)),
    }
    if data.draw(st.booleans()):
        config["layer_types"] = data.draw(
            st.lists(st.sampled_from([SLIDING, FULL]), min_size=num_layers, max_size=num_layers)
        )
    if model_type.startswith("gemma4"):
        config |= {
            "attention_k_eq_v": k_eq_v,
            "num_global_key_value_heads": data.draw(st.sampled_from([None, 1, 8])),
        }
        config["use_double_wide_mlp"] = data.draw(st.booleans())
    if model_type == "gemma3n_text":
        config["num_kv_shared_layers"] = 0
    check_config(config)
