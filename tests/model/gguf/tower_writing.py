"""Writes files of towers (mmproj), as llama.cpp's converter does, from the tensors and config of a checkpoint.

Independent of the reader: names are rules in the other direction. The files that the converter made of the same
checkpoints (August 2026) had the same names, shapes and numbers.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tests.model.gguf.writing import container, quantize

_PRODUCTS = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_out", "out": "attn_out"}
_RULES: dict[str, tuple[tuple[str, str], ...]] = {
    "gemma4": (
        (r"vision_tower\.encoder\.layers\.", "v.blk."),
        (r"vision_tower\.patch_embedder\.input_proj", "v.patch_embd"),
        (r"vision_tower\.patch_embedder\.position_embedding_table", "v.position_embd.weight"),
        (r"vision_tower\.std", "v.std"),
        (r"embed_vision\.embedding_projection", "mm.input_projection"),
        (r"\.input_layernorm", ".ln1"),
        (r"\.post_attention_layernorm", ".attn_post_norm"),
        (r"\.pre_feedforward_layernorm", ".ln2"),
        (r"\.post_feedforward_layernorm", ".ffn_post_norm"),
        (r"\.mlp\.(gate|up|down)_proj", r".ffn_\1"),
        (r"audio_tower\.layers\.", "a.blk."),
        (r"audio_tower\.subsample_conv_projection\.layer(\d)\.conv", r"a.conv1d.\1"),
        (r"audio_tower\.subsample_conv_projection\.layer(\d)\.norm", r"a.conv1d.\1.norm"),
        (r"audio_tower\.subsample_conv_projection\.input_proj_linear", "a.input_projection"),
        (r"audio_tower\.output_proj", "a.pre_encode.out"),
        (r"embed_audio\.embedding_projection", "mm.a.input_projection"),
        (r"\.feed_forward1\.pre_layer_norm", ".ffn_norm"),
        (r"\.feed_forward1\.post_layer_norm", ".ffn_post_norm"),
        (r"\.feed_forward2\.pre_layer_norm", ".ffn_norm_1"),
        (r"\.feed_forward2\.post_layer_norm", ".ffn_post_norm_1"),
        (r"\.feed_forward1\.ffw_layer_1", ".ffn_up"),
        (r"\.feed_forward1\.ffw_layer_2", ".ffn_down"),
        (r"\.feed_forward2\.ffw_layer_1", ".ffn_up_1"),
        (r"\.feed_forward2\.ffw_layer_2", ".ffn_down_1"),
        (r"\.norm_pre_attn", ".attn_pre_norm"),
        (r"\.norm_post_attn", ".attn_post_norm"),
        (r"\.norm_out", ".ln2"),
        (r"\.self_attn\.post\b", ".attn_out"),
        (r"\.self_attn\.relative_k_proj", ".attn_k_rel"),
        (r"\.self_attn\.per_dim_scale", ".per_dim_scale.weight"),
        (r"\.lconv1d\.pre_layer_norm", ".conv_norm"),
        (r"\.lconv1d\.linear_start", ".conv_pw1"),
        (r"\.lconv1d\.depthwise_conv1d", ".conv_dw"),
        (r"\.lconv1d\.conv_norm", ".norm_conv"),
        (r"\.lconv1d\.linear_end", ".conv_pw2"),
        (r"\.linear\.", "."),
    ),
    "gemma4_unified": (
        (r"vision_embedder\.patch_ln(\d)", r"v.patch_norm.\1"),
        (r"vision_embedder\.patch_dense", "v.patch_embd"),
        (r"vision_embedder\.pos_embedding", "v.position_embd.weight"),
        (r"vision_embedder\.pos_norm", "v.patch_norm.3"),
        (r"embed_vision\.embedding_projection", "mm.input_projection"),
        (r"embed_audio\.embedding_projection", "mm.a.input_projection"),
    ),
    "gemma3": (
        (r"vision_tower\.encoder\.layers\.", "v.blk."),
        (r"vision_tower\.embeddings\.patch_embedding", "v.patch_embd"),
        (r"vision_tower\.embeddings\.position_embedding", "v.position_embd"),
        (r"vision_tower\.post_layernorm", "v.post_ln"),
        (r"multi_modal_projector\.mm_soft_emb_norm", "mm.soft_emb_norm"),
        (r"multi_modal_projector\.mm_input_projection_weight", "mm.input_projection.weight"),
        (r"\.layer_norm(\d)", r".ln\1"),
        (r"\.mlp\.fc1", ".ffn_up"),
        (r"\.mlp\.fc2", ".ffn_down"),
    ),
    "gemma3n": (
        (r"vision_tower\.timm_model\.blocks\.", "v.blk."),
        (r"vision_tower\.timm_model\.", "v."),
        (r"embed_vision\.embedding_projection", "mm.input_projection"),
        (r"embed_vision\.(hard|soft)_embedding_norm", r"mm.\1_emb_norm"),
        (r"embed_vision\.embedding", "mm.embedding"),
        (r"audio_tower\.conformer\.", "a.blk."),
        (r"audio_tower\.subsample_conv_projection\.conv_(\d)\.conv", r"a.conv1d.\1"),
        (r"audio_tower\.subsample_conv_projection\.conv_(\d)\.norm", r"a.conv1d.\1.norm"),
        (r"audio_tower\.subsample_conv_projection\.input_proj_linear", "a.pre_encode.out"),
        (r"embed_audio\.embedding_projection", "mm.a.input_projection"),
        (r"embed_audio\.(hard|soft)_embedding_norm", r"mm.a.\1_emb_norm"),
        (r"embed_audio\.embedding", "mm.a.embedding"),
        (r"\.ffw_layer_start\.pre_layer_norm", ".ffn_norm"),
        (r"\.ffw_layer_start\.post_layer_norm", ".ffn_post_norm"),
        (r"\.ffw_layer_end\.pre_layer_norm", ".ffn_norm_1"),
        (r"\.ffw_layer_end\.post_layer_norm", ".ffn_post_norm_1"),
        (r"\.ffw_layer_start\.ffw_layer_1", ".ffn_up"),
        (r"\.ffw_layer_start\.ffw_layer_2", ".ffn_down"),
        (r"\.ffw_layer_end\.ffw_layer_1", ".ffn_up_1"),
        (r"\.ffw_layer_end\.ffw_layer_2", ".ffn_down_1"),
        (r"\.attention\.pre_attn_norm", ".ln1"),
        (r"\.attention\.post_norm", ".ln2"),
        (r"\.attention\.post\b", ".attn_out"),
        (r"\.attention\.attn\.relative_position_embedding\.pos_proj", ".linear_pos"),
        (r"\.attention\.attn\.per_dim_scale", ".per_dim_scale"),
        (r"\.attention\.attn\.(q|k|v)_proj", r".attn_\1"),
        (r"\.lconv1d\.pre_layer_norm", ".conv_norm"),
        (r"\.lconv1d\.linear_start", ".conv_pw1"),
        (r"\.lconv1d\.depthwise_conv1d", ".conv_dw"),
        (r"\.lconv1d\.conv_norm", ".norm_conv"),
        (r"\.lconv1d\.linear_end", ".conv_pw2"),
        (r"(a\.blk\.\d+)\.norm\.", r"\1.layer_pre_norm."),
    ),
}
_PROJECTORS = {
    "gemma4": ("gemma4v", "gemma4a"),
    "gemma4_unified": ("gemma4uv", "gemma4ua"),
    "gemma3": ("gemma3", None),
    "gemma3n": ("gemma3nv", "gemma3na"),
}


def stored_name(name: str, model_type: str) -> str:
    for pattern, theirs in _RULES[model_type]:
        name = re.sub(pattern, theirs, name)
    if model_type != "gemma3n":
        name = re.sub(r"\.self_attn\.(q|k|v|o|out)_(proj|norm)\b", _attention, name)
    return name


def _attention(found: re.Match[str]) -> str:
    return f".{_PRODUCTS[found[1]]}{'_norm' if found[2] == 'norm' else ''}"


def stored_values(name: str, values: Tensor, config: Mapping[str, Any]) -> Tensor:
    model_type = str(config["model_type"])
    if name.endswith("per_dim_scale") and model_type == "gemma4":
        return functional.softplus(values)
    if name.endswith("depthwise_conv1d.weight") and model_type == "gemma4":
        return values.squeeze(1)
    if name.endswith("patch_embedder.input_proj.weight"):
        side = round((values.shape[1] / 3) ** 0.5)
        return values.view(-1, side, side, 3).permute(0, 3, 1, 2)
    if re.search(r"patch_dense\.weight|patch_ln1\.", name):
        side = round((values.shape[-1] / 3) ** 0.5)
        channels_last = values.view(-1, side, side, 3)
        return channels_last.permute(0, 3, 1, 2).reshape(values.shape)
    if name.endswith("pos_embedding"):
        return values.permute(1, 0, 2)
    if name.endswith("mm_soft_emb_norm.weight"):
        return values + 1
    if name.endswith("conv_stem.conv.bias"):
        return values[None, :, None, None]
    return values[None] if values.ndim == 0 else values


def tower_metadata(config: Mapping[str, Any], width: int) -> dict[str, Any]:
    """`width`: of the decoder's stream."""
    model_type = str(config["model_type"])
    seen, heard = _PROJECTORS[model_type]
    fields: dict[str, Any] = {"general.architecture": "clip", "general.type": "mmproj"}
    vision, audio = config.get("vision_config"), config.get("audio_config")
    if vision is not None:
        is_gemma3 = model_type == "gemma3"
        fields |= {
            "clip.has_vision_encoder": True,
            "clip.vision.projection_dim": width,
            "clip.vision.image_size": vision.get("image_size", 224),
            "clip.vision.patch_size": vision.get("patch_size", 3),
            "clip.vision.embedding_length": vision.get("hidden_size", vision.get("mm_embed_dim")),
            "clip.vision.feed_forward_length": vision.get("intermediate_size", 0),
            "clip.vision.block_count": vision.get("num_hidden_layers", 0),
            "clip.vision.attention.head_count": vision.get("num_attention_heads", 0),
            "clip.vision.image_mean": [0.5 if is_gemma3 else 0.0] * 3,
            "clip.vision.image_std": [0.5 if is_gemma3 else 1.0] * 3,
            "clip.vision.attention.layer_norm_epsilon": 1e-6,
        }
        fields["clip.projector_type" if is_gemma3 else "clip.vision.projector_type"] = seen
        if is_gemma3:
            rows = round(config["mm_tokens_per_image"] ** 0.5)
            fields["clip.vision.projector.scale_factor"] = vision["image_size"] // vision["patch_size"] // rows
        elif model_type == "gemma4" and vision.get("pooling_kernel_size", 3) != 3:
            fields["clip.vision.projector.scale_factor"] = vision["pooling_kernel_size"]
    if audio is not None and heard is not None:
        layers = ("num_hidden_layers", "conf_num_hidden_layers")
        heads = ("num_attention_heads", "conf_num_attention_heads")
        fields |= {
            "clip.has_audio_encoder": True,
            "clip.audio.projector_type": heard,
            "clip.audio.projection_dim": width,
            "clip.audio.embedding_length": audio.get("hidden_size", audio.get("audio_embed_dim")),
            "clip.audio.block_count": next((audio[name] for name in layers if name in audio), 0),
            "clip.audio.attention.head_count": next((audio[name] for name in heads if name in audio), 0),
            "clip.audio.num_mel_bins": audio.get("input_feat_size", 128),
            "clip.audio.attention.layer_norm_epsilon": 1e-5,  # which is not what the towers have
        }
    return fields


def is_of_tower(name: str) -> bool:
    beginnings = ("vision_tower.", "vision_embedder.", "audio_tower.", "embed_", "multi_modal_projector.")
    inside = name.removeprefix("model.")
    return inside.startswith(beginnings) and not inside.startswith("embed_tokens")


def tower_file(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    width: int,
    type_of: Callable[[str], str] = lambda name: "F32",
    **changes: Any,
) -> bytes:
    """`type_of` says how a matrix is written; everything else is float32. `changes` to metadata; None: left out."""
    written: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for full_name, tensor in tensors.items():
        name = full_name.removeprefix("model.").replace("vision_model.", "")
        if not is_of_tower(name):
            continue
        values = stored_values(name, tensor.float(), config).contiguous().numpy()
        type = type_of(name) if values.ndim == 2 and values.shape[-1] % 32 == 0 else "F32"
        octets, _ = quantize(np.ascontiguousarray(values), type)
        written[stored_name(name, str(config["model_type"]))] = (type, values.shape, octets)
    metadata = {**tower_metadata(config, width), **{f"clip.{name}": value for name, value in changes.items()}}
    return container({name: value for name, value in metadata.items() if value is not None}, written)


def softplus_and_back(values: Tensor) -> Tensor:
    """What is left of numbers that a file has as their softplus."""
    return torch.log(torch.expm1(functional.softplus(values).double())).float()
