"""Reads the part of a `config.json` that describes how sound becomes rows of the decoder.

Fields that a config leaves out have the defaults of the class that wrote it, as in `family_defaults.py`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from facet.errors import ConfigError
from facet.model.config_fields import ConfigFields, shown
from facet.model.layer_config import MOST_LAYERS
from facet.model_spec import ModelSpec
from facet.sound_spec import ConformerSpec, ConformerTowerSpec, SampleEmbedderSpec, SoundSpec, UsmTowerSpec

_LEAST_CLIPPING = 1e9  # activations stay far below, and are not bounded here


def read_sound_spec(config: Mapping[str, Any], model: ModelSpec) -> SoundSpec | None:
    """What the model's tower for sound is. None: it takes no sound. `model` is the decoder."""
    top = ConfigFields(config)
    if "audio_config" not in top or "text_config" not in top:
        return None
    audio = top.section("audio_config")
    model_type = top.text("model_type", "")
    readers: dict[str, Callable[[ConfigFields, ConfigFields, ModelSpec], SoundSpec]] = {
        "gemma4": _conformer_tower,
        "gemma4_unified": _sample_embedder,
        "gemma3n": _usm_tower,
    }
    if model_type not in readers:
        raise ConfigError(f"config.json has an audio_config, but model_type {shown(model_type)} has no tower for it.")
    return readers[model_type](top, audio, model)


def _sample_embedder(top: ConfigFields, audio: ConfigFields, model: ModelSpec) -> SampleEmbedderSpec:
    return SampleEmbedderSpec(
        frame_size=audio.integer("audio_embed_dim", 640),
        norm_eps=audio.number("rms_norm_eps", 1e-6),
        output_size=model.hidden_size,
    )


def _conformer_tower(top: ConfigFields, audio: ConfigFields, model: ModelSpec) -> ConformerTowerSpec:
    if audio.text("hidden_act", "silu") != "silu":
        raise audio.wrong("hidden_act", "silu, the only activation of these towers")
    window = audio.integer("attention_context_left", 13, least=2) - 1
    if audio.integer("attention_chunk_size", 12) != window:
        raise audio.wrong("attention_chunk_size", f"attention_context_left less one, which is {window}")
    channels = _two_counts(audio, "subsampling_conv_channels", (128, 32))
    if channels[0] % 4:
        raise audio.wrong("subsampling_conv_channels", "two numbers, the first of them a multiple of 4")
    return ConformerTowerSpec(
        conformer=_conformer(
            audio,
            "",
            hidden_size=audio.integer("hidden_size", 1024),
            window=window,
            kernel_size=audio.integer("conv_kernel_size", 5),
            key_scale=math.log(1 + math.e) / math.log(2),
            mlp_scale=audio.number("residual_weight", 0.5),
            is_clipped=audio.boolean("use_clipped_linears", True),
        ),
        num_bins=channels[0],  # the config does not say; the width of the projection takes them to be equal
        num_channels=channels,
        norm_eps=audio.number("rms_norm_eps", 1e-6),
        projected_size=audio.integer("output_proj_dims", 1536),
        output_size=model.hidden_size,
    )


def _usm_tower(top: ConfigFields, audio: ConfigFields, model: ModelSpec) -> UsmTowerSpec:
    for name, expected in (("sscp_conv_kernel_size", [[3, 3], [3, 3]]), ("sscp_conv_stride_size", [[2, 2], [2, 2]])):
        if name in audio and audio.raw(name) != expected:
            raise audio.wrong(name, f"{expected}")
    num_bins = audio.integer("input_feat_size", 128)
    if num_bins % 4:
        raise audio.wrong("input_feat_size", "a multiple of 4")
    table_size = audio.integer("vocab_size", 128)
    first_id = audio.integer("vocab_offset", 262_272)
    padding_row = model.vocab_size - 1 - first_id
    if not 0 <= padding_row < table_size:
        raise audio.wrong("vocab_offset", f"such that the last of all {model.vocab_size:,} ids is one of sound")
    return UsmTowerSpec(
        conformer=_conformer(
            audio,
            "conf_",
            hidden_size=audio.integer("hidden_size", 1536),
            window=audio.integer("conf_attention_context_left", 13),
            kernel_size=audio.integer("conf_conv_kernel_size", 5),
            key_scale=1.0,
            mlp_scale=audio.number("conf_residual_weight", 0.5),
            is_clipped=False,
        ),
        num_bins=num_bins,
        num_channels=_two_counts(audio, "sscp_conv_channel_size", (128, 32)),
        group_norm_eps=audio.number("sscp_conv_group_norm_eps", 1e-3),
        reduction=audio.integer("conf_reduction_factor", 4),
        num_rows=top.integer("audio_soft_tokens_per_image", 188),
        table_size=table_size,
        table_ids=range(first_id, first_id + table_size),
        padding_row=padding_row,
        norm_eps=audio.number("rms_norm_eps", 1e-6),
        output_size=model.hidden_size,
    )


def _conformer(
    audio: ConfigFields,
    prefix: str,
    *,
    hidden_size: int,
    window: int,
    kernel_size: int,
    key_scale: float,
    mlp_scale: float,
    is_clipped: bool,
) -> ConformerSpec:
    """`prefix`: before the names of fields that both towers have."""
    if audio.number("gradient_clipping", 1e10) < _LEAST_CLIPPING:
        raise audio.wrong("gradient_clipping", f"at least {_LEAST_CLIPPING:g}")
    if audio.integer(f"{prefix}attention_context_right", 0, least=0):
        raise audio.wrong(f"{prefix}attention_context_right", "0: no published tower looks ahead")
    num_heads = audio.integer(f"{prefix}num_attention_heads", 8)
    if hidden_size % num_heads or hidden_size % 2:
        raise audio.wrong("hidden_size", f"an even multiple of {prefix}num_attention_heads, which is {num_heads}")
    return ConformerSpec(
        hidden_size=hidden_size,
        num_layers=audio.integer(f"{prefix}num_hidden_layers", 12, most=MOST_LAYERS),
        num_heads=num_heads,
        window=window,
        kernel_size=kernel_size,
        logit_cap=audio.number(f"{prefix}attention_logit_cap", 50.0),
        key_scale=key_scale,
        mlp_scale=mlp_scale,
        norm_eps=audio.number("rms_norm_eps", 1e-6),
        is_clipped=is_clipped,
    )


def _two_counts(audio: ConfigFields, name: str, default: tuple[int, int]) -> tuple[int, int]:
    value = audio.raw(name)
    if value is None:
        return default
    if not isinstance(value, list) or len(value) != 2:
        raise audio.wrong(name, "a list of two numbers")
    first, second = audio.integers_per_layer(name, 2, 1)
    return first, second
