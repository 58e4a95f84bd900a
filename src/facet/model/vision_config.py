"""Reads the part of a `config.json` that describes how pictures become rows of the decoder.

Fields that a config leaves out have the defaults of the class that wrote it, as in `family_defaults.py`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from facet.errors import ConfigError
from facet.model.config_fields import ConfigFields, shown
from facet.model.layer_config import MOST_LAYERS
from facet.model.mobile_net_config import read_mobile_net
from facet.vision_spec import PatchEmbedderSpec, PatchTowerSpec, SquareTowerSpec, VisionSpec


def read_vision_spec(config: Mapping[str, Any], output_size: int) -> VisionSpec | None:
    """What the model's tower for pictures is. None: it takes no pictures. `output_size` is the width of the decoder's
    stream."""
    top = ConfigFields(config)
    model_type = top.text("model_type", "")
    if "vision_config" not in top or "text_config" not in top:
        return None
    vision = top.section("vision_config")
    readers: dict[str, Callable[[ConfigFields, ConfigFields, int], VisionSpec]] = {
        "gemma4": _patch_tower,
        "gemma4_unified": _patch_embedder,
        "gemma3": _square_tower,
        "gemma3n": read_mobile_net,
    }
    if model_type not in readers:
        raise ConfigError(f"config.json has a vision_config, but model_type {shown(model_type)} has no tower for it.")
    return readers[model_type](top, vision, output_size)


def _patch_tower(top: ConfigFields, vision: ConfigFields, output_size: int) -> PatchTowerSpec:
    _refuse_other_activations(vision, "hidden_activation")
    num_heads = vision.integer("num_attention_heads", 12)
    if vision.integer("num_key_value_heads", num_heads) != num_heads:
        raise vision.wrong("num_key_value_heads", f"num_attention_heads, which is {num_heads}")
    head_dim = vision.integer("head_dim", 64)
    if head_dim % 4:
        raise vision.wrong("head_dim", "a multiple of 4: each half of a head turns in pairs")
    return PatchTowerSpec(
        hidden_size=vision.integer("hidden_size", 768),
        num_layers=vision.integer("num_hidden_layers", 16, most=MOST_LAYERS),
        mlp_width=vision.integer("intermediate_size", 3072),
        num_heads=num_heads,
        head_dim=head_dim,
        patch_size=vision.integer("patch_size", 16),
        cell_size=vision.integer("pooling_kernel_size", 3),
        num_positions=vision.integer("position_embedding_size", 10_240),
        rotary_theta=vision.section("rope_parameters").number("rope_theta", 100.0),
        norm_eps=vision.number("rms_norm_eps", 1e-6),
        is_clipped=vision.boolean("use_clipped_linears"),
        is_standardized=vision.boolean("standardize"),
        output_size=output_size,
    )


def _patch_embedder(top: ConfigFields, vision: ConfigFields, output_size: int) -> PatchEmbedderSpec:
    hidden = vision.integer("mm_embed_dim", 3840)
    if vision.integer("output_proj_dims", hidden) != hidden:
        raise vision.wrong("output_proj_dims", f"mm_embed_dim, which is {hidden}")
    return PatchEmbedderSpec(
        patch_size=vision.integer("patch_size", 16) * vision.integer("pooling_kernel_size", 3),
        hidden_size=hidden,
        num_positions=vision.integer("mm_posemb_size", 1120),
        norm_eps=vision.number("rms_norm_eps", 1e-6),
        output_size=output_size,
    )


def _square_tower(top: ConfigFields, vision: ConfigFields, output_size: int) -> SquareTowerSpec:
    _refuse_other_activations(vision, "hidden_act")
    hidden, num_heads = vision.integer("hidden_size", 768), vision.integer("num_attention_heads", 12)
    if hidden % num_heads:
        raise vision.wrong("hidden_size", f"a multiple of num_attention_heads, which is {num_heads}")
    image_size, patch_size = vision.integer("image_size", 224), vision.integer("patch_size", 16)
    num_rows = top.integer("mm_tokens_per_image", 256)
    rows_per_side, patches_per_side = math.isqrt(num_rows), image_size // patch_size
    if image_size % patch_size:
        raise vision.wrong("image_size", f"a multiple of patch_size, which is {patch_size}")
    if rows_per_side**2 != num_rows or patches_per_side % rows_per_side:
        raise top.wrong(
            "mm_tokens_per_image", f"the square of a number that divides the {patches_per_side} patches of a side"
        )
    return SquareTowerSpec(
        hidden_size=hidden,
        num_layers=vision.integer("num_hidden_layers", 12, most=MOST_LAYERS),
        mlp_width=vision.integer("intermediate_size", 3072),
        num_heads=num_heads,
        image_size=image_size,
        patch_size=patch_size,
        rows_per_side=rows_per_side,
        norm_eps=vision.number("layer_norm_eps", 1e-6),
        output_size=output_size,
    )


def _refuse_other_activations(vision: ConfigFields, field: str) -> None:
    if vision.text(field, "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise vision.wrong(field, "gelu_pytorch_tanh, the only activation of these towers")
