"""Makes the fields of config.json and generation_config.json of a GGUF file's metadata.

Every hyperparameter that the metadata or the shapes of tensors say is taken from there; the rest is left out, and means
what it means in any config: the family's published default.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from facet.errors import CheckpointError, UnsupportedModelError
from facet.model.config_fields import ConfigFields, shown
from facet.model.gguf.container import Gguf
from facet.model.gguf.names import ROTATED_PAIRS, named_tensors
from facet.model.gguf.tower_names import is_tower_file

_ARCHITECTURES = {"gemma3": "Gemma3ForCausalLM", "gemma3n": "Gemma3nForCausalLM", "gemma4": "Gemma4ForCausalLM"}
_NUM_LAYERS_27B = 62  # Gemma 3 27B: the only one whose queries are not scaled by the width of a head

# How tokens that end an answer are written, beside those that the metadata names.
_ENDS = {
    "gemma3": ("<eos>", "<end_of_turn>"),
    "gemma3n": ("<eos>", "<end_of_turn>"),
    "gemma4": ("<eos>", "<turn|>", "<|tool_response>"),
}
# Placeholders of media and what encloses them, under the names of config.json.
_MEDIA = {
    "image_token_id": ("<|image|>", "<image_soft_token>"),
    "boi_token_id": ("<|image>", "<start_of_image>"),
    "eoi_token_id": ("<image|>", "<end_of_image>"),
    "audio_token_id": ("<|audio|>", "<audio_soft_token>"),
    "boa_token_id": ("<|audio>", "<start_of_audio>"),
    "eoa_token_id": ("<audio|>", "<end_of_audio>"),
    "video_token_id": ("<|video|>",),
}
_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
# What every published Gemma recommends, for files that do not say.
_PUBLISHED_SAMPLING = {"temperature": 1.0, "top_k": 64, "top_p": 0.95}


def architecture_of(file: Gguf) -> str:
    found = file.metadata.get("general.architecture")
    if is_tower_file(file):
        raise UnsupportedModelError(
            f"{file.path} holds towers for pictures and sound alone. Name the file of its model, which finds it in the "
            "same folder, or elsewhere with --mmproj."
        )
    if found not in _ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path} holds a model of the architecture {shown(found)}. Facet reads "
            f"{', '.join(_ARCHITECTURES)} from GGUF files."
        )
    return str(found)


def make_config(files: Sequence[Gguf]) -> dict[str, Any]:
    """The first file has the metadata."""
    architecture = architecture_of(files[0])
    metadata = ConfigFields(files[0].metadata, files[0].path.name)
    tensors = {info.name: info for file in files for info in file.tensors.values()}

    def rows(name: str) -> int | None:
        return tensors[name].shape[0] if name in tensors else None

    def said(name: str) -> Any:
        return metadata.raw(f"{architecture}.{name}")

    num_layers = metadata.integer(f"{architecture}.block_count", most=10_000)
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": f"{architecture}_text",
        "dtype": _dtype(files),
        "vocab_size": rows("token_embd.weight"),
        "hidden_size": said("embedding_length"),
        "num_hidden_layers": num_layers,
        "intermediate_size": said("feed_forward_length"),
        "num_attention_heads": said("attention.head_count"),
        "num_key_value_heads": said("attention.head_count_kv"),
        "head_dim": said("attention.key_length"),
        "sliding_window": said("attention.sliding_window"),
        "max_position_embeddings": said("context_length"),
        "rms_norm_eps": said("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "layer_types": _layer_types(said("attention.sliding_window_pattern"), num_layers),
        "rope_theta": said("rope.freq_base"),
        "rope_local_base_freq": said("rope.freq_base_swa"),
    }
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{files[0].path} has no token_embd.weight: it holds no model, or a part of one.")
    if said("final_logit_softcapping"):
        config["final_logit_softcapping"] = said("final_logit_softcapping")
    family = {"gemma3": _gemma3, "gemma3n": _gemma3n, "gemma4": _gemma4}[architecture]
    config |= family(config, metadata, files)
    config |= _token_fields(metadata.values(), architecture)
    config["quantization_config"] = {"quant_method": "gguf", "types": _quantized_types(files)}
    return {name: value for name, value in config.items() if value is not None}


def make_generation_config(file: Gguf) -> dict[str, Any]:
    tokens = _token_fields(file.metadata, architecture_of(file))
    said = {ours: file.metadata.get(f"general.sampling.{name}") for name, ours in _SAMPLING.items()}
    sampling = {name: value for name, value in said.items() if value is not None} or _PUBLISHED_SAMPLING
    return {"do_sample": True, **sampling, "eos_token_id": tokens["eos_token_id"]}


def _gemma3(config: Mapping[str, Any], metadata: ConfigFields, files: Sequence[Gguf]) -> dict[str, Any]:
    num_layers, head_dim = config["num_hidden_layers"], config["head_dim"] or 256
    scaled_by = head_dim
    if num_layers == _NUM_LAYERS_27B:
        scaled_by = config["hidden_size"] // config["num_attention_heads"]
    fields: dict[str, Any] = {"query_pre_attn_scalar": scaled_by, "stores_whole_norm_weights": True}
    if config["sliding_window"] is None:  # then no layer looks through a window
        fields["layer_types"] = ["full_attention"] * num_layers
    scaling = metadata.text("gemma3.rope.scaling.type", "none")
    if scaling != "none":
        fields["rope_scaling"] = {"rope_type": scaling, "factor": metadata.number("gemma3.rope.scaling.factor")}
    return fields


def _gemma3n(config: Mapping[str, Any], metadata: ConfigFields, files: Sequence[Gguf]) -> dict[str, Any]:
    fields = _per_layer_inputs("gemma3n", metadata, files)
    fields["altup_num_inputs"] = metadata.raw("gemma3n.altup.num_inputs")
    fields["altup_active_idx"] = metadata.raw("gemma3n.altup.active_idx")
    laurel = _find(files, "blk.0.laurel_l.weight")
    if laurel is not None:
        fields["laurel_rank"] = laurel[0]
    cutoffs = metadata.raw("gemma3n.activation_sparsity_scale")
    if isinstance(cutoffs, list) and all(isinstance(cutoff, float) for cutoff in cutoffs):
        # Stored as a number of deviations in float32, and published with two digits.
        fractions = [round((1 + math.erf(cutoff / math.sqrt(2))) / 2, 6) for cutoff in cutoffs]
        fields["activation_sparsity_pattern"] = fractions
    return fields


def _gemma4(config: Mapping[str, Any], metadata: ConfigFields, files: Sequence[Gguf]) -> dict[str, Any]:
    num_layers = config["num_hidden_layers"]
    fields = _per_layer_inputs("gemma4", metadata, files)
    fields["hidden_size_per_layer_input"] = fields["hidden_size_per_layer_input"] or 0
    fields["global_head_dim"] = config["head_dim"]
    fields["head_dim"] = metadata.raw("gemma4.attention.key_length_swa")
    kinds = config["layer_types"] or []
    # Keys that are values too: global layers without a matrix for values, though they have one for keys.
    of_full = [index for index, kind in enumerate(kinds) if kind == "full_attention"]
    has_keys = [index for index in of_full if _find(files, f"blk.{index}.attn_k.weight") is not None]
    fields["attention_k_eq_v"] = bool(has_keys) and all(
        _find(files, f"blk.{index}.attn_v.weight") is None for index in has_keys
    )
    counts = config["num_key_value_heads"]
    if isinstance(counts, list):
        if len(counts) != num_layers or len(kinds) != num_layers:
            raise metadata.wrong("gemma4.attention.head_count_kv", f"a number for each of {num_layers} layers")
        by_kind = dict(zip(reversed(kinds), reversed(counts), strict=True))
        fields["num_key_value_heads"] = by_kind.get("sliding_attention", counts[0])
        fields["num_global_key_value_heads"] = by_kind.get("full_attention")
    experts = metadata.raw("gemma4.expert_count")
    if experts:
        fields |= {
            "enable_moe_block": True,
            "num_experts": experts,
            "top_k_experts": metadata.raw("gemma4.expert_used_count"),
            "moe_intermediate_size": metadata.raw("gemma4.expert_feed_forward_length"),
        }
    fraction = _rotated_fraction(files)
    if fraction is not None:
        fields["rope_parameters"] = {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": config["rope_theta"],
                "partial_rotary_factor": fraction,
            }
        }
    return fields


def _per_layer_inputs(architecture: str, metadata: ConfigFields, files: Sequence[Gguf]) -> dict[str, Any]:
    table = _find(files, "per_layer_token_embd.weight")
    return {
        "hidden_size_per_layer_input": metadata.raw(f"{architecture}.embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": None if table is None else table[0],
        "num_kv_shared_layers": metadata.raw(f"{architecture}.attention.shared_kv_layers"),
    }


def _rotated_fraction(files: Sequence[Gguf]) -> float | None:
    """The share of the pairs of a global layer's heads that rotate: their angles are not divided by a huge number."""
    for file in files:
        info = file.tensors.get(ROTATED_PAIRS)
        if info is not None and info.type.name == "F32":
            divisors = file.bytes_of(info).view(np.float32)
            return float((divisors < 1e20).mean())
    return None


def _layer_types(pattern: Any, num_layers: int) -> list[str] | None:
    """The kinds of layers, from a truth value for every layer, or from the number of layers of which the last one is
    global."""
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        pattern = [(index + 1) % pattern != 0 for index in range(num_layers)]
    if not isinstance(pattern, list):
        return None
    return ["sliding_attention" if is_sliding else "full_attention" for is_sliding in pattern]


def _token_fields(metadata: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    fields = ConfigFields(metadata, "GGUF metadata")
    tokens = fields.raw("tokenizer.ggml.tokens")
    id_of = {token: token_id for token_id, token in enumerate(tokens)} if isinstance(tokens, list) else {}
    ends = [*fields.token_ids("tokenizer.ggml.eos_token_id"), *fields.token_ids("tokenizer.ggml.eot_token_id")]
    ends += [id_of[text] for text in _ENDS[architecture] if text in id_of]
    media = {name: next((id_of[text] for text in texts if text in id_of), None) for name, texts in _MEDIA.items()}
    return {
        "bos_token_id": fields.raw("tokenizer.ggml.bos_token_id"),
        "pad_token_id": fields.raw("tokenizer.ggml.padding_token_id"),
        "eos_token_id": list(dict.fromkeys(ends)) or None,
        **media,
    }


def _quantized_types(files: Sequence[Gguf]) -> dict[str, str]:
    """The GGUF types of quantized tensors, by the names of modules."""
    return {
        named.name.removesuffix("_weight").removesuffix(".weight"): named.info.type.name
        for file in files
        for info in file.tensors.values()
        if info.type.format is not None
        for named in named_tensors(info)
    }


def _dtype(files: Sequence[Gguf]) -> str:
    """The type of activations. Where matrices are float16 or quantized, norms are float32 all the same, and Gemma's
    activations leave the range of float16."""
    table = _find_type(files, "token_embd.weight")
    return "float32" if table == "F32" else "bfloat16"


def _find(files: Sequence[Gguf], name: str) -> tuple[int, ...] | None:
    """The shape of a tensor."""
    return next((file.tensors[name].shape for file in files if name in file.tensors), None)


def _find_type(files: Sequence[Gguf], name: str) -> str | None:
    return next((file.tensors[name].type.name for file in files if name in file.tensors), None)
