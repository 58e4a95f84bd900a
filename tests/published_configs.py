"""The config.json of every published Gemma, as far as the text decoder is concerned.

Fields are those of the published files, including what they leave out: a file omits whatever equalled the default of
the class that wrote it, which for Gemma 3 4B is nearly everything.
"""

import copy
from typing import Any

Config = dict[str, Any]

SLIDING, FULL = "sliding_attention", "full_attention"


def pattern(num_sliding: int, num_layers: int) -> list[str]:
    """So many sliding layers, then a full one, over and over."""
    return [FULL if (index + 1) % (num_sliding + 1) == 0 else SLIDING for index in range(num_layers)]


# By whether images attend both ways, which those of the small models do not.
_VISION: dict[bool, Config] = {
    False: {"hidden_size": 768, "num_hidden_layers": 16, "use_clipped_linears": True},
    True: {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 72,
        "standardize": True,
    },
}


def _gemma4(architecture: str, num_sliding: int, **text: Any) -> Config:
    unified = "Unified" in architecture
    model_type = "gemma4_unified" if unified else "gemma4"
    config: Config = {
        "model_type": f"{model_type}_text",
        "vocab_size": 262_144,
        "head_dim": 256,
        "global_head_dim": 512,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "final_logit_softcapping": 30.0,
        "layer_types": pattern(num_sliding, text["num_hidden_layers"]),
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        },
        **text,
    }
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "eos_token_id": [1, 106],
        "image_token_id": 258_880,
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "text_config": config,
        "vision_config": {
            "model_type": f"{model_type}_vision",
            **({} if unified else _VISION[text["use_bidirectional_attention"] == "vision"]),
        },
    }


def _gemma4_small(num_sliding: int, **text: Any) -> Config:
    """E2B and E4B: shared keys, per-layer inputs, causal throughout."""
    return _gemma4(
        "Gemma4ForConditionalGeneration",
        num_sliding,
        num_attention_heads=8,
        num_global_key_value_heads=None,
        attention_k_eq_v=False,
        sliding_window=512,
        hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=262_144,
        enable_moe_block=False,
        use_bidirectional_attention=None,
        max_position_embeddings=131_072,
        **text,
    )


def _gemma4_large(architecture: str = "Gemma4ForConditionalGeneration", **text: Any) -> Config:
    """12B, 26B-A4B and 31B: global values are their keys, images see all of themselves."""
    return _gemma4(
        architecture,
        5,
        attention_k_eq_v=True,
        sliding_window=1024,
        num_kv_shared_layers=0,
        use_bidirectional_attention="vision",
        max_position_embeddings=262_144,
        use_double_wide_mlp=False,
        **text,
    )


def _gemma3_text_only(**text: Any) -> Config:
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": None,
        "vocab_size": 262_144,
        "max_position_embeddings": 32_768,
        "eos_token_id": [1, 106],
        "torch_dtype": "bfloat16",
        **text,
    }


def _gemma3_with_vision(**text: Any) -> Config:
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "mm_tokens_per_image": 256,
        "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "gemma3_text",
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
            **text,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 896,
            "patch_size": 14,
        },
    }


def _gemma3n(num_layers: int, width: int, num_shared: int) -> Config:
    return {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "model_type": "gemma3n",
        "eos_token_id": [1, 106],
        "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "gemma3n_text",
            "hidden_size": 2048,
            "num_hidden_layers": num_layers,
            "intermediate_size": [width] * num_layers,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "sliding_window": 512,
            "layer_types": pattern(4, num_layers),
            "num_kv_shared_layers": num_shared,
            "hidden_size_per_layer_input": 256,
            "vocab_size": 262_400,
            "vocab_size_per_layer_input": 262_144,
            "altup_active_idx": 0,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_num_inputs": 4,
            "laurel_rank": 64,
            "activation_sparsity_pattern": [0.95] * 10 + [0.0] * (num_layers - 10),
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "rope_scaling": None,
            "max_position_embeddings": 32_768,
            "final_logit_softcapping": 30.0,
        },
        "vision_config": {"model_type": "gemma3n_vision"},
        "audio_config": {"model_type": "gemma3n_audio"},
    }


PUBLISHED: dict[str, Config] = {
    "Gemma 4 E2B": _gemma4_small(
        4,
        hidden_size=1536,
        num_hidden_layers=35,
        intermediate_size=6144,
        use_double_wide_mlp=True,
        num_key_value_heads=1,
        num_kv_shared_layers=20,
    ),
    "Gemma 4 E4B": _gemma4_small(
        5,
        hidden_size=2560,
        num_hidden_layers=42,
        intermediate_size=10_240,
        use_double_wide_mlp=False,
        num_key_value_heads=2,
        num_kv_shared_layers=18,
    ),
    "Gemma 4 12B": _gemma4_large(
        "Gemma4UnifiedForConditionalGeneration",
        hidden_size=3840,
        num_hidden_layers=48,
        intermediate_size=15_360,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=1,
    ),
    "Gemma 4 26B-A4B": _gemma4_large(
        hidden_size=2816,
        num_hidden_layers=30,
        intermediate_size=2112,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=2,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
    ),
    "Gemma 4 31B": _gemma4_large(
        hidden_size=5376,
        num_hidden_layers=60,
        intermediate_size=21_504,
        num_attention_heads=32,
        num_key_value_heads=16,
        num_global_key_value_heads=4,
        hidden_size_per_layer_input=0,
        enable_moe_block=False,
    ),
    # Newer files spell the kinds of layers out beside the old pattern.
    "Gemma 3 270M": _gemma3_text_only(
        hidden_size=640,
        num_hidden_layers=18,
        intermediate_size=2048,
        layer_types=pattern(5, 18),
        use_bidirectional_attention=False,
    ),
    "Gemma 3 1B": _gemma3_text_only(hidden_size=1152, num_hidden_layers=26, intermediate_size=6912),
    "Gemma 3 4B": _gemma3_with_vision(hidden_size=2560, num_hidden_layers=34, intermediate_size=10_240),
    "Gemma 3 12B": _gemma3_with_vision(
        hidden_size=3840,
        num_hidden_layers=48,
        intermediate_size=15_360,
        num_attention_heads=16,
        num_key_value_heads=8,
    ),
    "Gemma 3 27B": _gemma3_with_vision(
        hidden_size=5376,
        num_hidden_layers=62,
        intermediate_size=21_504,
        num_attention_heads=32,
        num_key_value_heads=16,
        head_dim=128,
        query_pre_attn_scalar=168,
    ),
    "Gemma 3n E2B": _gemma3n(30, 8192, 10),
    "Gemma 3n E4B": _gemma3n(35, 16_384, 15),
}


def _drafter(target: str, *, num_heads: int, hidden_size: int, intermediate_size: int, centroids: bool) -> Config:
    """Four layers that read the keys of the model they draft for: what has to agree with it is taken from there."""
    config, text = PUBLISHED[target], PUBLISHED[target]["text_config"]
    same = ["vocab_size", "head_dim", "global_head_dim", "num_key_value_heads", "num_global_key_value_heads"]
    same += ["sliding_window", "attention_k_eq_v", "rope_parameters", "rms_norm_eps", "max_position_embeddings"]
    return {
        "architectures": [config["architectures"][0].replace("ForConditionalGeneration", "AssistantForCausalLM")],
        "model_type": f"{config['model_type']}_assistant",
        "backbone_hidden_size": text["hidden_size"],
        "use_ordered_embeddings": centroids,
        "num_centroids": 2048,
        "centroid_intermediate_top_k": 32,
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "text_config": {
            **{key: text[key] for key in same},
            "model_type": "gemma4_text",
            "hidden_size": hidden_size,
            "intermediate_size": intermediate_size,
            "num_hidden_layers": 4,
            "num_attention_heads": num_heads,
            "num_kv_shared_layers": 4,
            "layer_types": pattern(3, 4),
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "enable_moe_block": False,
            "use_double_wide_mlp": False,
            "final_logit_softcapping": None,
        },
    }


# By the model they draft for.
DRAFTERS: dict[str, Config] = {
    name: _drafter(
        name,
        num_heads=num_heads,
        hidden_size=256 if is_small else 1024,
        intermediate_size=2048 if is_small else 8192,
        centroids=is_small,
    )
    for name, num_heads, is_small in (
        ("Gemma 4 E2B", 4, True),
        ("Gemma 4 E4B", 4, True),
        ("Gemma 4 12B", 16, False),
        ("Gemma 4 26B-A4B", 16, False),
        ("Gemma 4 31B", 32, False),
    )
}


def published(name: str) -> Config:
    """A copy to change at will."""
    return copy.deepcopy(PUBLISHED[name])


def text_only(name: str) -> Config:
    """The same decoder, as an export without towers spells it: one flat object, a CausalLM architecture."""
    config = published(name)
    text = config.pop("text_config", None)
    if text is None:
        return config
    (architecture,) = config["architectures"]
    shared = {key: config[key] for key in ("eos_token_id", "dtype", "torch_dtype") if key in config}
    return {**text, **shared, "architectures": [architecture.replace("ConditionalGeneration", "CausalLM")]}


def wrapped(name: str) -> Config:
    """The same decoder under text_config, as files with towers spell it."""
    config = published(name)
    if "text_config" in config:
        return config
    (architecture,) = config.pop("architectures")
    return {
        "architectures": [architecture.replace("CausalLM", "ConditionalGeneration")],
        "model_type": config["model_type"].removesuffix("_text"),
        "eos_token_id": config["eos_token_id"],
        "torch_dtype": config["torch_dtype"],
        "text_config": config,
    }
