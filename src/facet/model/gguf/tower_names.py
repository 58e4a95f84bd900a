"""Gives the tensors of a file of towers (mmproj) the names and shapes that unquantized checkpoints have for them.

Such a file says which projector it has, and with it which names. A table maps what stands between a block's number and
the last word of a name; the last words are those of checkpoints, but for few tensors that lie in another way.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from facet.model.gguf.container import Gguf, TensorInfo
from facet.model.gguf.layouts import Layout
from facet.model.gguf.names import NamedTensor

ARCHITECTURE = "clip"

_GEMMA4_VISION = {
    "v.patch_embd": "vision_tower.patch_embedder.input_proj",
    "v.position_embd": "vision_tower.patch_embedder.position_embedding_table",
    "v.std_bias": "vision_tower.std_bias",
    "v.std_scale": "vision_tower.std_scale",
    "mm.input_projection": "embed_vision.embedding_projection",
}
_GEMMA4_VISION_BLOCK = {
    "ln1": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_UNIFIED_VISION = {
    "v.patch_norm.1": "vision_embedder.patch_ln1",
    "v.patch_embd": "vision_embedder.patch_dense",
    "v.patch_norm.2": "vision_embedder.patch_ln2",
    "v.position_embd": "vision_embedder.pos_embedding",
    "v.patch_norm.3": "vision_embedder.pos_norm",
    "mm.input_projection": "embed_vision.embedding_projection",
}
_GEMMA3_VISION = {
    "v.patch_embd": "vision_tower.embeddings.patch_embedding",
    "v.position_embd": "vision_tower.embeddings.position_embedding",
    "v.post_ln": "vision_tower.post_layernorm",
    "mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
    "mm.input_projection": "multi_modal_projector.mm_input_projection_weight",
}
_GEMMA3_VISION_BLOCK = {
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_GEMMA3N_VISION = {
    "v.conv_stem.conv": "vision_tower.timm_model.conv_stem.conv",
    "v.conv_stem.bn": "vision_tower.timm_model.conv_stem.bn",
    "v.msfa.ffn.pw_exp.conv": "vision_tower.timm_model.msfa.ffn.pw_exp.conv",
    "v.msfa.ffn.pw_exp.bn": "vision_tower.timm_model.msfa.ffn.pw_exp.bn",
    "v.msfa.ffn.pw_proj.conv": "vision_tower.timm_model.msfa.ffn.pw_proj.conv",
    "v.msfa.ffn.pw_proj.bn": "vision_tower.timm_model.msfa.ffn.pw_proj.bn",
    "v.msfa.norm": "vision_tower.timm_model.msfa.norm",
    "mm.embedding": "embed_vision.embedding",
    "mm.hard_emb_norm": "embed_vision.hard_embedding_norm",
    "mm.soft_emb_norm": "embed_vision.soft_embedding_norm",
    "mm.input_projection": "embed_vision.embedding_projection",
}
_GEMMA4_SOUND = {
    "a.conv1d.0": "audio_tower.subsample_conv_projection.layer0.conv",
    "a.conv1d.0.norm": "audio_tower.subsample_conv_projection.layer0.norm",
    "a.conv1d.1": "audio_tower.subsample_conv_projection.layer1.conv",
    "a.conv1d.1.norm": "audio_tower.subsample_conv_projection.layer1.norm",
    "a.input_projection": "audio_tower.subsample_conv_projection.input_proj_linear",
    "a.pre_encode.out": "audio_tower.output_proj",
    "mm.a.input_projection": "embed_audio.embedding_projection",
}
_GEMMA4_SOUND_BLOCK = {
    "ffn_norm": "feed_forward1.pre_layer_norm",
    "ffn_up": "feed_forward1.ffw_layer_1",
    "ffn_down": "feed_forward1.ffw_layer_2",
    "ffn_post_norm": "feed_forward1.post_layer_norm",
    "attn_pre_norm": "norm_pre_attn",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_k_rel": "self_attn.relative_k_proj",
    "per_dim_scale": "self_attn.per_dim_scale",
    "attn_out": "self_attn.post",
    "attn_post_norm": "norm_post_attn",
    "conv_norm": "lconv1d.pre_layer_norm",
    "conv_pw1": "lconv1d.linear_start",
    "conv_dw": "lconv1d.depthwise_conv1d",
    "norm_conv": "lconv1d.conv_norm",
    "conv_pw2": "lconv1d.linear_end",
    "ffn_norm_1": "feed_forward2.pre_layer_norm",
    "ffn_up_1": "feed_forward2.ffw_layer_1",
    "ffn_down_1": "feed_forward2.ffw_layer_2",
    "ffn_post_norm_1": "feed_forward2.post_layer_norm",
    "ln2": "norm_out",
}
_UNIFIED_SOUND = {"mm.a.input_projection": "embed_audio.embedding_projection"}
_GEMMA3N_SOUND = {
    "a.conv1d.0": "audio_tower.subsample_conv_projection.conv_0.conv",
    "a.conv1d.0.norm": "audio_tower.subsample_conv_projection.conv_0.norm",
    "a.conv1d.1": "audio_tower.subsample_conv_projection.conv_1.conv",
    "a.conv1d.1.norm": "audio_tower.subsample_conv_projection.conv_1.norm",
    "a.pre_encode.out": "audio_tower.subsample_conv_projection.input_proj_linear",
    "mm.a.embedding": "embed_audio.embedding",
    "mm.a.hard_emb_norm": "embed_audio.hard_embedding_norm",
    "mm.a.soft_emb_norm": "embed_audio.soft_embedding_norm",
    "mm.a.input_projection": "embed_audio.embedding_projection",
}
_GEMMA3N_SOUND_BLOCK = {
    "ffn_norm": "ffw_layer_start.pre_layer_norm",
    "ffn_up": "ffw_layer_start.ffw_layer_1",
    "ffn_down": "ffw_layer_start.ffw_layer_2",
    "ffn_post_norm": "ffw_layer_start.post_layer_norm",
    "ln1": "attention.pre_attn_norm",
    "attn_q": "attention.attn.q_proj",
    "attn_k": "attention.attn.k_proj",
    "attn_v": "attention.attn.v_proj",
    "linear_pos": "attention.attn.relative_position_embedding.pos_proj",
    "per_dim_scale": "attention.attn.per_dim_scale",
    "attn_out": "attention.post",
    "ln2": "attention.post_norm",
    "conv_norm": "lconv1d.pre_layer_norm",
    "conv_pw1": "lconv1d.linear_start",
    "conv_dw": "lconv1d.depthwise_conv1d",
    "norm_conv": "lconv1d.conv_norm",
    "conv_pw2": "lconv1d.linear_end",
    "ffn_norm_1": "ffw_layer_end.pre_layer_norm",
    "ffn_up_1": "ffw_layer_end.ffw_layer_1",
    "ffn_down_1": "ffw_layer_end.ffw_layer_2",
    "ffn_post_norm_1": "ffw_layer_end.post_layer_norm",
    "layer_pre_norm": "norm",
}

_LAST_WORD = re.compile(r"(.+)\.(weight|bias|gamma|input_min|input_max|output_min|output_max)")
_BLOCK = re.compile(r"([va])\.blk\.(\d{1,6})\.(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """One kind of tower: what its tensors are called here, and how those lie that differ."""

    family: str  # of the language models that it belongs to, as GGUF files call them
    whole: Mapping[str, str]
    blocks: str  # what stands before the number of a block
    in_block: Mapping[str, str]
    layouts: Mapping[str, Layout]  # by our names, without those of blocks
    products: str = ""  # what the names of products have before their last word, and other matrices have not


PROJECTORS: Mapping[str, Projector] = {
    "gemma4v": Projector(
        family="gemma4",
        whole=_GEMMA4_VISION,
        blocks="vision_tower.encoder.layers.",
        in_block=_GEMMA4_VISION_BLOCK,
        layouts={"vision_tower.patch_embedder.input_proj.weight": "pixels"},
        products=".linear",
    ),
    "gemma4uv": Projector(
        family="gemma4",
        whole=_UNIFIED_VISION,
        blocks="",
        in_block={},
        layouts={
            "vision_embedder.patch_ln1.weight": "pixels",
            "vision_embedder.patch_ln1.bias": "pixels",
            "vision_embedder.patch_dense.weight": "pixels",
            "vision_embedder.pos_embedding": "places",
        },
    ),
    "gemma3": Projector(
        family="gemma3",
        whole=_GEMMA3_VISION,
        blocks="vision_tower.encoder.layers.",
        in_block=_GEMMA3_VISION_BLOCK,
        layouts={"multi_modal_projector.mm_soft_emb_norm.weight": "less one"},
    ),
    "gemma3nv": Projector(
        family="gemma3n",
        whole=_GEMMA3N_VISION,
        blocks="vision_tower.timm_model.blocks.",
        in_block={},
        layouts={"vision_tower.timm_model.conv_stem.conv.bias": "vector"},
    ),
    "gemma4a": Projector(
        family="gemma4",
        whole=_GEMMA4_SOUND,
        blocks="audio_tower.layers.",
        in_block=_GEMMA4_SOUND_BLOCK,
        layouts={"lconv1d.depthwise_conv1d.weight": "kernel", "self_attn.per_dim_scale": "before softplus"},
        products=".linear",
    ),
    "gemma4ua": Projector(family="gemma4", whole=_UNIFIED_SOUND, blocks="", in_block={}, layouts={}),
    "gemma3na": Projector(
        family="gemma3n",
        whole=_GEMMA3N_SOUND,
        blocks="audio_tower.conformer.",
        in_block=_GEMMA3N_SOUND_BLOCK,
        layouts={"lconv1d.depthwise_conv1d.weight": "kernel"},
    ),
}
# Parameters that are no `weight` of anything in a checkpoint.
_BARE = (
    "position_embedding_table",
    "pos_embedding",
    "std_bias",
    "std_scale",
    "per_dim_scale",
    "mm_input_projection_weight",
)
_NO_PRODUCTS = ("relative_k_proj", "depthwise_conv1d")  # matrices in blocks that are stored without bounds


def is_tower_file(file: Gguf) -> bool:
    return file.metadata.get("general.architecture") == ARCHITECTURE


def projector_of(file: Gguf, kind: str) -> Any:
    """What the file says it is. `kind`: vision or audio. Files with one of them alone may say it in another place."""
    metadata = file.metadata
    if not metadata.get(f"clip.has_{kind}_encoder"):
        return None
    return metadata.get(f"clip.{kind}.projector_type", metadata.get("clip.projector_type"))


def tower_tensors(file: Gguf) -> Iterator[NamedTensor]:
    """Every tensor. Names that no tower of Gemma has stay as they are, behind that of the tower."""
    towers = {kind: PROJECTORS.get(str(projector_of(file, kind))) for kind in ("vision", "audio")}
    swaps = _swaps_mlp(file)
    for info in file.tensors.values():
        kind = "audio" if info.name.startswith(("a.", "mm.a.")) else "vision"
        found = towers[kind]
        name = None if found is None else _name(info, found, swaps)
        if found is None or name is None:
            tower = "audio_tower" if kind == "audio" else "vision_tower"
            yield NamedTensor(name=f"{tower}.{info.name}", info=info)
        else:
            yield NamedTensor(name=name, info=info, layout=_layout(name, info, found))


def _swaps_mlp(file: Gguf) -> bool:
    """Early files of Gemma 3 call the first matrix of an MLP `down` and the second `up`."""
    if projector_of(file, "vision") != "gemma3":
        return False
    first = file.tensors.get("v.blk.0.ffn_down.weight")
    width = file.metadata.get("clip.vision.embedding_length")
    return first is not None and first.shape[-1] == width and first.shape[0] != width


def _name(info: TensorInfo, found: Projector, swaps_mlp: bool) -> str | None:
    split = _LAST_WORD.fullmatch(info.name)
    stem, word = (split[1], split[2]) if split else (info.name, "")
    prefix, names = "", found.whole
    if place := _BLOCK.fullmatch(stem):
        if not found.in_block:  # convolutions, whose names inside a block are those of checkpoints
            return f"{found.blocks}{place[2]}.{place[3]}.{word}" if found.blocks and word else None
        stem, prefix, names = place[3], f"{found.blocks}{place[2]}.", found.in_block
    if swaps_mlp:
        stem = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}.get(stem, stem)
    if stem not in names:
        return None
    ours = names[stem]
    if ours.endswith(_BARE):
        return prefix + ours
    is_product = word == "weight" and prefix and len(info.shape) == 2 and not ours.endswith(_NO_PRODUCTS)
    return f"{prefix}{ours}{found.products if is_product else ''}.{word}"


def _layout(name: str, info: TensorInfo, found: Projector) -> Layout | None:
    if name.endswith(("_min", "_max")):
        return "scalar"
    inside = re.sub(rf"^{re.escape(found.blocks)}\d+\.", "", name) if found.blocks else name
    if name.endswith(".gamma") and len(info.shape) > 1:
        return "vector"
    return found.layouts.get(inside)
