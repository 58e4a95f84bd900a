"""The shape of the bundled model: its `config.json`, with the reasons for its numbers.

The trainable decoder is built from the `ModelSpec` that Facet itself reads out of this config, so the two cannot
disagree about a width or about which layer reads whose keys.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from facet.model.families import read_model_spec
from facet.model_spec import ModelSpec

BUNDLED_FOLDER = Path(__file__).parents[2] / "src" / "facet" / "bundled"

_SLIDING, _FULL = "sliding_attention", "full_attention"

# Most of what this model does is find a place in the prompt and copy from it: which tool, which parameter, which
# words of the request. That takes attention to the whole prompt several times in a row, so there are more global
# layers than in a large Gemma, and three of them own their keys; a lookup needs one layer that marks each place
# with what stands before it, and a later one that searches for the mark. The feed-forward parts, where a large
# model keeps facts, are narrow: this one has few facts to keep.
_LAYER_TYPES = (_SLIDING, _SLIDING, _FULL, _SLIDING, _FULL, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL)


def make_config(**changes: Any) -> dict[str, Any]:
    """The bundled model's `config.json`, with some fields changed: tests train smaller ones."""
    config: dict[str, Any] = dict(
        architectures=["Gemma4ForCausalLM"],
        model_type="gemma4_text",
        dtype="bfloat16",
        vocab_size=4096,
        vocab_size_per_layer_input=4096,
        hidden_size=256,
        hidden_size_per_layer_input=16,
        intermediate_size=448,  # the weights are 15.5 MB with this; 16 MB is the limit, with the tokenizer
        num_hidden_layers=len(_LAYER_TYPES),
        layer_types=list(_LAYER_TYPES),
        num_kv_shared_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        # Facet's GPU kernels take heads of 64 and more. Heads that search the whole prompt are twice as wide, as in
        # every Gemma 4: the more places there are, the more numbers it takes to tell the right one from all others.
        head_dim=64,
        global_head_dim=128,
        sliding_window=128,
        max_position_embeddings=8192,
        final_logit_softcapping=30.0,
        rope_parameters={
            _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        },
        hidden_activation="gelu_pytorch_tanh",
        rms_norm_eps=1e-6,
        attention_bias=False,
        attention_dropout=0.0,
        attention_k_eq_v=False,
        enable_moe_block=False,
        use_double_wide_mlp=False,
        use_bidirectional_attention=None,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    unknown = set(changes) - set(config)
    assert not unknown, f"fields the config does not have: {sorted(unknown)}"
    return config | changes


BUNDLED_CONFIG: Mapping[str, Any] = MappingProxyType(make_config())


def make_spec(config: Mapping[str, Any]) -> ModelSpec:
    """What Facet will compute for this config."""
    return read_model_spec(config)
