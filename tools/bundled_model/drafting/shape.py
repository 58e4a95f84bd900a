"""The shape of the bundled model's drafter: its `config.json`, with the reasons for its numbers."""

from collections.abc import Mapping
from typing import Any

from facet.model.draft_loader import read_draft_model_spec
from facet.model.draft_model import DraftModelSpec
from tools.bundled_model.shape import make_spec

_SLIDING, _FULL = "sliding_attention", "full_attention"
# What has to agree with the model drafted for.
_SAME = (
    *("vocab_size", "num_key_value_heads", "head_dim", "global_head_dim", "sliding_window", "rope_parameters"),
    *("hidden_activation", "rms_norm_eps", "max_position_embeddings", "attention_k_eq_v"),
)


def make_drafter_config(target: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """For a text model with the config `target`. `changes` are of the drafter's layers: tests train smaller ones.

    Two thirds of its weights are the head, a row for each token; what is left of the 16 MB limits its width. A layer
    takes a CPU almost as long as one of the model itself, because both wait for memory and for PyTorch, not for
    products: so there are two, one that sees the sentence and one that sees everything and copies. For the same
    reason clusters of tokens would save nothing.
    """
    text = dict(
        model_type="gemma4_text",
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        layer_types=[_SLIDING, _FULL],
        num_attention_heads=2,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        enable_moe_block=False,
        use_double_wide_mlp=False,
        final_logit_softcapping=None,
    )
    text |= {name: target[name] for name in _SAME} | changes
    return dict(
        architectures=["Gemma4AssistantForCausalLM"],
        model_type="gemma4_assistant",
        dtype="bfloat16",
        backbone_hidden_size=target["hidden_size"],
        use_ordered_embeddings=False,
        tie_word_embeddings=True,
        text_config=text,
    )


def make_drafter_spec(config: Mapping[str, Any], target: Mapping[str, Any]) -> DraftModelSpec:
    """What Facet will compute for this config, beside a model with the config `target`."""
    return read_draft_model_spec(config, make_spec(target), "The drafter")
