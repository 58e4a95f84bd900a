"""Makes random models of about 100 million parameters with the structure of the families they are named after."""

import json
from pathlib import Path
from typing import Any

import torch

ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
COMMON: dict[str, Any] = dict(
    architectures=["Gemma4ForCausalLM"],
    model_type="gemma4_text",
    vocab_size=16384,
    vocab_size_per_layer_input=16384,
    sliding_window=512,
    max_position_embeddings=4096,
    rope_parameters=ROPE,
    final_logit_softcapping=30.0,
)
SHAPES: dict[str, dict[str, Any]] = {
    # 5 sliding : 1 global, the last 5 of 12 layers share keys, per-layer inputs
    "e4b": COMMON
    | dict(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        global_head_dim=256,
        num_kv_shared_layers=5,
        hidden_size_per_layer_input=64,
    ),
    # keys are values in the global layers, no per-layer inputs
    "31b": COMMON
    | dict(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_global_key_value_heads=1,
        head_dim=64,
        global_head_dim=128,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
    ),
}


def write_checkpoint(folder: Path, config: dict[str, Any]) -> None:
    import transformers

    torch.manual_seed(0)
    fields = {key: value for key, value in config.items() if key != "architectures"}
    model = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig.from_dict(json.loads(json.dumps(fields))))
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
