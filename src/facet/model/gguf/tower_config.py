"""Adds to a config made of a GGUF file what a file of towers (mmproj) says of pictures and sound.

The file names the projector of each tower; sizes follow from its metadata and the shapes of its tensors. What neither
says is the same in all published towers of that kind, and is left to the defaults of the family.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from facet.errors import CheckpointError
from facet.model.config_fields import ConfigFields, shown
from facet.model.gguf.container import Gguf
from facet.model.gguf.tower_names import PROJECTORS, is_tower_file, projector_of

# On each side of what becomes one row.
_PATCHES_OF_A_ROW = 4  # Gemma 3
_PATCHES_OF_A_CELL = 3  # Gemma 4

# A file of a language model does not say which of these it was; its towers do.
_MODEL_TYPES = {"gemma4uv": "gemma4_unified", "gemma4ua": "gemma4_unified"}
_ARCHITECTURES = {
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma3n": "Gemma3nForConditionalGeneration",
    "gemma4": "Gemma4ForConditionalGeneration",
    "gemma4_unified": "Gemma4UnifiedForConditionalGeneration",
}
# Fields that a config with towers has outside of the one for text.
_TOP = (
    *("quantization_config", "dtype", "eos_token_id", "video_token_id"),
    *("boi_token_id", "image_token_id", "eoi_token_id", "boa_token_id", "audio_token_id", "eoa_token_id"),
)
# Tokens before and after each kind. What stands for a soft token between them is never computed with.
_BOUNDARIES = {"vision_config": ("boi", "eoi"), "audio_config": ("boa", "eoa")}
_SOFT = {"vision_config": ("image", "video"), "audio_config": ("audio",)}
_UNUSED = re.compile(r"<unused\d+>")
# Rows of Gemma 3n's table for pictures, behind those of text.
_TABLE_OF_PICTURES = 128


def fits(towers: Gguf, config: Mapping[str, Any], family: str) -> bool:
    """Whether these towers make rows for this model. The widths of all published models of a family differ."""
    if not is_tower_file(towers):
        return False
    found = _projectors(towers)
    width = config.get("hidden_size")
    return bool(found) and all(
        PROJECTORS[projector].family == family and towers.metadata.get(f"clip.{kind}.projection_dim") == width
        for kind, projector in found.items()
    )


def check_fit(towers: Gguf, config: Mapping[str, Any], family: str) -> None:
    if fits(towers, config, family):
        return
    if not is_tower_file(towers):
        held = shown(towers.metadata.get("general.architecture"))
        raise CheckpointError(f"{towers.path} holds no towers for pictures or sound, but a model of {held}.")
    said = {kind: projector_of(towers, kind) for kind in ("vision", "audio")}
    width = towers.metadata.get("clip.vision.projection_dim", towers.metadata.get("clip.audio.projection_dim"))
    raise CheckpointError(
        f"{towers.path} holds towers of another model: {', '.join(shown(name) for name in said.values() if name)}, for "
        f"rows of {shown(width)} numbers. This model is {family}, and its rows have {config.get('hidden_size')}."
    )


def with_towers(config: Mapping[str, Any], model: Gguf, towers: Gguf, family: str) -> dict[str, Any]:
    """The config of both files. `config`: of the language model alone."""
    found = _projectors(towers)
    model_type = next((_MODEL_TYPES[name] for name in found.values() if name in _MODEL_TYPES), family)
    text = {name: value for name, value in config.items() if name not in _TOP and name != "architectures"}
    text["model_type"] = f"{model_type}_text"
    top = {name: config[name] for name in _TOP if name in config}
    if family == "gemma4" and not config.get("hidden_size_per_layer_input"):
        text["use_bidirectional_attention"] = "vision"  # all but those with per-layer inputs: E2B and E4B
    sections = {f"{kind}_config": _SECTIONS[projector](_Read(towers, kind)) for kind, projector in found.items()}
    if family == "gemma3":
        top["mm_tokens_per_image"] = _gemma3_rows(_Read(towers, "vision"))
    if family == "gemma3n":
        _place_tables(sections, int(config["vocab_size"]))
    return {
        "architectures": [_ARCHITECTURES[model_type]],
        "model_type": model_type,
        **top,
        **_soft_tokens(top, sections, model),
        "text_config": text,
        **sections,
    }


def _soft_tokens(top: Mapping[str, Any], sections: Iterable[str], model: Gguf) -> dict[str, int]:
    """Unused tokens for those that the vocabulary has not: Gemma 3 has its own behind what some files hold."""
    tokens = model.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        return {}  # a file without a tokenizer: ids are those of the published vocabularies
    unused = [index for index, token in enumerate(tokens) if _UNUSED.fullmatch(str(token))]
    found: dict[str, int] = {}
    for section in sections:
        for name in _BOUNDARIES[section]:
            if f"{name}_token_id" not in top:
                raise CheckpointError(
                    f"{model.path} has no token {name}, which stands beside pictures or sound. Leave its towers alone "
                    "with --language-model-only."
                )
        for name in _SOFT[section]:
            if f"{name}_token_id" not in top and unused:
                found[f"{name}_token_id"] = unused.pop()
    return found


def processor_config(towers: Gguf) -> dict[str, Any]:
    """What the file says about pixels: compared with what towers of the family take."""
    named = {name: towers.metadata.get(f"clip.vision.{name}") for name in ("image_mean", "image_std")}
    return {name: value for name, value in named.items() if value is not None}


def _projectors(towers: Gguf) -> dict[str, str]:
    """The projectors that Facet knows, by kind: vision, audio."""
    said = {kind: projector_of(towers, kind) for kind in ("vision", "audio")}
    found = {kind: name for kind, name in said.items() if isinstance(name, str) and name in PROJECTORS}
    if found.get("audio") == "gemma3na" and "a.conv1d.0.norm.weight" not in towers.tensors:
        del found["audio"]  # written without some of its tensors: llama.cpp itself does not hear with this model
    return found


class _Read:
    """Metadata and shapes of one tower."""

    def __init__(self, towers: Gguf, kind: str) -> None:
        self._towers, self._kind = towers, kind
        self._fields = ConfigFields(towers.metadata, towers.path.name)

    def integer(self, name: str, default: int | None = None) -> int:
        return self._fields.integer(f"clip.{self._kind}.{name}", default)

    def shape(self, name: str, num_axes: int) -> tuple[int, ...]:
        info = self._towers.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self._towers.path} has no {name}: a part of it is missing. Download it again.")
        if len(info.shape) != num_axes:
            raise CheckpointError(f"{self._towers.path}: {name} is {list(info.shape)}, not of {num_axes} axes.")
        return info.shape

    def has(self, name: str) -> bool:
        return name in self._towers.tensors


def _encoder(read: _Read) -> dict[str, Any]:
    return {
        "hidden_size": read.integer("embedding_length"),
        "num_hidden_layers": read.integer("block_count"),
        "num_attention_heads": read.integer("attention.head_count"),
    }


def _patch_tower(read: _Read) -> dict[str, Any]:
    return {
        **_encoder(read),
        "intermediate_size": read.integer("feed_forward_length"),
        "num_key_value_heads": read.integer("attention.head_count"),
        "head_dim": read.shape("v.blk.0.attn_q_norm.weight", 1)[0],
        "patch_size": read.shape("v.patch_embd.weight", 4)[-1],
        "pooling_kernel_size": read.integer("projector.scale_factor", _PATCHES_OF_A_CELL),
        "position_embedding_size": read.shape("v.position_embd.weight", 3)[1],
        "use_clipped_linears": read.has("v.blk.0.attn_q.input_max"),
        "standardize": read.has("v.std_bias"),
    }


def _patch_embedder(read: _Read) -> dict[str, Any]:
    hidden, num_values = read.shape("v.patch_embd.weight", 2)
    patch = read.integer("patch_size")
    return {
        "mm_embed_dim": hidden,
        "patch_size": patch,
        "pooling_kernel_size": math.isqrt(num_values // 3) // patch,
        "mm_posemb_size": read.shape("v.position_embd.weight", 3)[1],
    }


def _square_tower(read: _Read) -> dict[str, Any]:
    return {
        **_encoder(read),
        "intermediate_size": read.integer("feed_forward_length"),
        "image_size": read.integer("image_size"),
        "patch_size": read.integer("patch_size"),
    }


def _gemma3_rows(read: _Read) -> int:
    merged = read.integer("projector.scale_factor", _PATCHES_OF_A_ROW)
    return (read.integer("image_size") // read.integer("patch_size") // merged) ** 2


def _mobile_net(read: _Read) -> dict[str, Any]:
    return {
        "hidden_size": read.shape("mm.input_projection.weight", 2)[1],
        "vocab_size": read.shape("mm.embedding.weight", 2)[0],
    }


def _conformer_tower(read: _Read) -> dict[str, Any]:
    return {
        **_encoder(read),
        "conv_kernel_size": read.shape("a.blk.0.conv_dw.weight", 2)[-1],
        "subsampling_conv_channels": [read.shape(f"a.conv1d.{index}.weight", 4)[0] for index in range(2)],
        "output_proj_dims": read.shape("a.pre_encode.out.weight", 2)[0],
        "use_clipped_linears": read.has("a.blk.0.attn_q.input_max"),
    }


def _sample_embedder(read: _Read) -> dict[str, Any]:
    return {"audio_embed_dim": read.shape("mm.a.input_projection.weight", 2)[1]}


def _usm_tower(read: _Read) -> dict[str, Any]:
    return {
        "hidden_size": read.integer("embedding_length"),
        "conf_num_hidden_layers": read.integer("block_count"),
        "conf_num_attention_heads": read.integer("attention.head_count"),
        "conf_conv_kernel_size": read.shape("a.blk.0.conv_dw.weight", 3)[-1],
        "input_feat_size": read.integer("num_mel_bins"),
        "sscp_conv_channel_size": [read.shape(f"a.conv1d.{index}.weight", 4)[0] for index in range(2)],
        "vocab_size": read.shape("mm.a.embedding.weight", 2)[0],
    }


_SECTIONS: Mapping[str, Callable[[_Read], dict[str, Any]]] = {
    "gemma4v": _patch_tower,
    "gemma4uv": _patch_embedder,
    "gemma3": _square_tower,
    "gemma3nv": _mobile_net,
    "gemma4a": _conformer_tower,
    "gemma4ua": _sample_embedder,
    "gemma3na": _usm_tower,
}


def _place_tables(sections: Mapping[str, dict[str, Any]], vocab_size: int) -> None:
    """Ids of pictures and of sound are the last ones of the vocabulary, in this order."""
    sound, pictures = sections.get("audio_config"), sections.get("vision_config")
    end = vocab_size - (_TABLE_OF_PICTURES if sound is None else int(sound["vocab_size"]))
    if sound is not None:
        sound["vocab_offset"] = end
    if pictures is not None:
        pictures["vocab_offset"] = end - int(pictures["vocab_size"])
