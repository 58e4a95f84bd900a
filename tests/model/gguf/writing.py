"""Writes GGUF files: the container, blocks of every type from numbers, and whole models from folders and tensors.

Independent of the reader: formulas are written out in numpy once more, and names are a table in the other direction.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from facet.model.families import read_model_spec
from tests.published_configs import Config

Floats = npt.NDArray[np.floating[Any]]
Octets = npt.NDArray[np.uint8]

NUMBERS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8}
NUMBERS |= {"Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30}
_LAYOUTS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
QUANTIZED = tuple(_LAYOUTS)

_NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "norm.weight": "output_norm.weight",
    "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "layer_scalar": "layer_output_scale.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "altup.correction_coefs.weight": "altup_correct_coef.weight",
    "altup.correct_output_scale": "altup_correct_scale.weight",
    "altup.prediction_coefs.weight": "altup_predict_coef.weight",
    "altup.modality_router.weight": "altup_router.weight",
    "altup.router_norm.weight": "altup_router_norm.weight",
    "laurel.linear_left.weight": "laurel_l.weight",
    "laurel.linear_right.weight": "laurel_r.weight",
    "laurel.post_laurel_norm.weight": "laurel_post_norm.weight",
}


# The container.


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    """With its type: bool, u32, i32 below zero, f32, string, or an array of one of them."""
    if isinstance(value, list):
        items = [_value(item) for item in value]
        return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(i[4:] for i in items)
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value) if value >= 0 else struct.pack("<Ii", 5, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<I", 8) + _string(value)


def container(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]], *, version: int = 3
) -> bytes:
    """`tensors`: type, shape and bytes by name."""
    alignment = metadata.get("general.alignment", 32)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    data = bytearray()
    for name, (type, shape, octets) in tensors.items():
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", NUMBERS[type], len(data))
        data += octets + bytes(-len(octets) % alignment)
    return head + bytes(-len(head) % alignment) + bytes(data)


# Blocks.


def quantize(values: Floats, type: str) -> tuple[bytes, Floats]:
    """A matrix as blocks, and the numbers that they stand for."""
    if type in ("F32", "F16"):
        stored = values.astype(np.float32 if type == "F32" else np.float16)
        return stored.tobytes(), stored.astype(np.float32)
    if type == "BF16":
        rounded = torch.from_numpy(values).to(torch.bfloat16)
        return rounded.view(torch.int16).numpy().tobytes(), rounded.float().numpy()
    size, _ = _LAYOUTS[type]
    blocks = values.reshape(-1, size).astype(np.float32)
    octets, numbers = _WRITERS[type](blocks)
    assert octets.shape[1] == _LAYOUTS[type][1]
    return octets.tobytes(), numbers.reshape(values.shape)


def _half(numbers: Floats) -> tuple[Octets, Floats]:
    """As bytes, and as what is left of them."""
    half = np.ascontiguousarray(numbers.astype(np.float16))
    return half.view(np.uint8).reshape(len(half), -1), half.astype(np.float32)


def _codes(numbers: Floats, largest: int) -> Octets:
    return np.clip(np.rint(numbers), 0, largest).astype(np.uint8)


def _safe(scales: Floats) -> Floats:
    return np.where(scales == 0, np.float32(1), scales)


def _nibbles(codes: Octets) -> Octets:
    low, high = codes[:, :16] & 15, codes[:, 16:] & 15
    return np.asarray(low | (high << 4), np.uint8)


def _high_bits(codes: Octets) -> Octets:
    return np.packbits(codes >> 4, axis=-1, bitorder="little")


def _symmetric(bits: int) -> Callable[[Floats], tuple[Octets, Floats]]:
    def write(blocks: Floats) -> tuple[Octets, Floats]:
        middle = 1 << (bits - 1)
        extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[:, None], -1)
        raw, scale = _half(extreme / -middle)
        codes = _codes(blocks / _safe(scale) + middle, 2 * middle - 1)
        parts = [raw, _high_bits(codes), _nibbles(codes)] if bits == 5 else [raw, _nibbles(codes)]
        return np.concatenate(parts, -1), scale * (codes.astype(np.float32) - middle)

    return write


def _with_minimum(bits: int) -> Callable[[Floats], tuple[Octets, Floats]]:
    def write(blocks: Floats) -> tuple[Octets, Floats]:
        low = blocks.min(-1, keepdims=True)
        raw, scale = _half((blocks.max(-1, keepdims=True) - low) / ((1 << bits) - 1))
        raw_low, low = _half(low)
        codes = _codes((blocks - low) / _safe(scale), (1 << bits) - 1)
        parts = [raw, raw_low, _high_bits(codes), _nibbles(codes)] if bits == 5 else [raw, raw_low, _nibbles(codes)]
        return np.concatenate(parts, -1), scale * codes.astype(np.float32) + low

    return write


def _q8_0(blocks: Floats) -> tuple[Octets, Floats]:
    raw, scale = _half(np.abs(blocks).max(-1, keepdims=True) / 127)
    codes = np.clip(np.rint(blocks / _safe(scale)), -127, 127).astype(np.int8)
    return np.concatenate([raw, codes.view(np.uint8)], -1), scale * codes.astype(np.float32)


def _k_with_minimums(bits: int) -> Callable[[Floats], tuple[Octets, Floats]]:
    def write(blocks: Floats) -> tuple[Octets, Floats]:
        groups = blocks.reshape(-1, 8, 32)
        low = np.minimum(groups.min(-1), 0)
        scales = (groups.max(-1) - low) / ((1 << bits) - 1)
        raw, coarse = _half(scales.max(-1, keepdims=True) / 63)
        raw_low, coarse_low = _half((-low).max(-1, keepdims=True) / 63)
        fine = _codes(scales / _safe(coarse), 63)
        fine_low = _codes(-low / _safe(coarse_low), 63)
        scale, minimum = (coarse * fine)[..., None], (coarse_low * fine_low)[..., None]
        codes = _codes((groups + minimum) / _safe(scale), (1 << bits) - 1)
        packed = np.concatenate(
            [
                (fine[:, :4] & 63) | (fine[:, 4:] >> 4 << 6),
                (fine_low[:, :4] & 63) | (fine_low[:, 4:] >> 4 << 6),
                (fine[:, 4:] & 15) | ((fine_low[:, 4:] & 15) << 4),
            ],
            -1,
        )
        pairs = codes.reshape(-1, 4, 2, 32) & 15
        parts = [raw, raw_low, packed]
        if bits == 5:
            parts.append(((codes >> 4) << np.arange(8, dtype=np.uint8)[:, None]).sum(1).astype(np.uint8))
        parts.append((pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(-1, 128))
        return np.concatenate(parts, -1), scale * codes.astype(np.float32) - minimum

    return write


def _q6_k(blocks: Floats) -> tuple[Octets, Floats]:
    groups = blocks.reshape(-1, 16, 16)
    scales = np.abs(groups).max(-1) / 31
    raw, coarse = _half(scales.max(-1, keepdims=True) / 127)
    fine = np.rint(scales / _safe(coarse)).clip(-127, 127).astype(np.int8)
    fine[:, ::2] *= -1  # scales have signs
    scale = (coarse * fine)[..., None]
    codes = _codes(groups / _safe(scale) + 32, 63)
    quarters = codes.reshape(-1, 2, 4, 32)
    low, high = quarters & 15, quarters >> 4
    lower = np.concatenate([low[:, :, 0] | (low[:, :, 2] << 4), low[:, :, 1] | (low[:, :, 3] << 4)], -1)
    upper = high[:, :, 0] | (high[:, :, 1] << 2) | (high[:, :, 2] << 4) | (high[:, :, 3] << 6)
    parts = [lower.reshape(-1, 128), upper.reshape(-1, 64), fine.view(np.uint8), raw]
    return np.concatenate(parts, -1), scale * (codes.astype(np.float32) - 32)


_WRITERS: dict[str, Callable[[Floats], tuple[Octets, Floats]]] = {
    "Q4_0": _symmetric(4),
    "Q5_0": _symmetric(5),
    "Q4_1": _with_minimum(4),
    "Q5_1": _with_minimum(5),
    "Q8_0": _q8_0,
    "Q4_K": _k_with_minimums(4),
    "Q5_K": _k_with_minimums(5),
    "Q6_K": _q6_k,
}


# Whole models.


def config_metadata(config: Config) -> dict[str, Any]:
    """As files of llama.cpp say what a text config says."""
    spec = read_model_spec(config)
    prefix = spec.family
    first = spec.layers[0]
    sliding = next((layer for layer in spec.layers if layer.attention == "sliding"), first)
    full = next((layer for layer in spec.layers if layer.attention == "global"), first)
    widths = [layer.mlp_width for layer in spec.layers]
    fields: dict[str, Any] = {
        "context_length": spec.max_positions,
        "embedding_length": spec.hidden_size,
        "block_count": spec.num_layers,
        "feed_forward_length": widths if len(set(widths)) > 1 else widths[0],
        "attention.head_count": first.num_heads,
        "attention.head_count_kv": first.num_kv_heads,
        "attention.key_length": full.head_dim,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "attention.sliding_window": sliding.window,
        "rope.freq_base": full.rotary.theta,
        "rope.freq_base_swa": sliding.rotary.theta,
    }
    pattern = [layer.attention == "sliding" for layer in spec.layers]
    if spec.logit_softcap:
        fields["final_logit_softcapping"] = spec.logit_softcap
    if spec.family == "gemma3":
        fields["attention.sliding_window_pattern"] = pattern
        if full.rotary.factor != 1:
            fields |= {"rope.scaling.type": "linear", "rope.scaling.factor": full.rotary.factor}
    else:
        fields["attention.sliding_window_pattern"] = pattern
        fields["attention.shared_kv_layers"] = sum(not layer.owns_kv for layer in spec.layers)
        width = 0 if spec.per_layer_input is None else spec.per_layer_input.width
        fields["embedding_length_per_layer_input"] = width
    if spec.altup is not None:
        fields |= {"altup.active_idx": 0, "altup.num_inputs": spec.altup.num_streams}
        normal = NormalDist()
        fields["activation_sparsity_scale"] = [
            normal.inv_cdf(layer.mlp_sparsity) if layer.mlp_sparsity else float("-inf") for layer in spec.layers
        ]
    if spec.family == "gemma4":
        fields["attention.key_length_swa"] = sliding.head_dim
        if sliding.num_kv_heads != full.num_kv_heads:
            fields["attention.head_count_kv"] = [layer.num_kv_heads for layer in spec.layers]
        if first.moe is not None:
            fields |= {
                "expert_count": first.moe.num_experts,
                "expert_used_count": first.moe.num_chosen,
                "expert_feed_forward_length": first.moe.width,
            }
    return {"general.architecture": prefix, **{f"{prefix}.{name}": value for name, value in fields.items()}}


def tokenizer_metadata(
    folder: Path, *, with_merges: bool = True, adds_bos: bool = False, knows_markers: bool = True
) -> dict[str, Any]:
    """Of a tokenizer.json and the template beside it. Where tokenizer_config.json does not name its markers, the
    converter of llama.cpp calls them normal."""
    description = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary, merges = description["model"]["vocab"], description["model"]["merges"]
    added = {token["content"]: token["special"] for token in description["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    # Those that a program must see are called ordinary, as llama.cpp does it.
    seen = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"}

    def type_of(token: str) -> int:
        if not knows_markers and "|" in token and token in added and token not in seen:
            return 1
        if token in added:
            return 3 if added[token] and token not in seen else 4
        return 6 if re.fullmatch(r"<0x..>", token) else 1

    fields: dict[str, Any] = {
        "model": "gemma4" if with_merges else "llama",
        "tokens": [token.replace("▁", " ") if type_of(token) == 4 else token for token in tokens],
        "token_type": [type_of(token) for token in tokens],
        "add_bos_token": adds_bos,
        "add_space_prefix": False,
        "bos_token_id": vocabulary["<bos>"],
        "eos_token_id": vocabulary["<eos>"],
        "padding_token_id": vocabulary["<pad>"],
        "unknown_token_id": vocabulary["<unk>"],
    }
    if with_merges:
        fields["merges"] = [" ".join(part.replace(" ", chr(288)) for part in pair) for pair in merges]
    else:
        rank = {"".join(pair): -float(index) for index, pair in reversed(list(enumerate(merges)))}
        fields["scores"] = [rank.get(token, -1000.0) for token in tokens]
    metadata = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    template = folder / "chat_template.jinja"
    if template.exists():
        metadata["tokenizer.chat_template"] = template.read_text(encoding="utf-8")
    return metadata


def model_file(
    config: Config,
    tensors: Mapping[str, Tensor],
    type_of: Callable[[str], str],
    metadata: Mapping[str, Any],
    *,
    splits_experts: bool = False,
) -> tuple[bytes, dict[str, Tensor]]:
    """A file of a whole model, and its tensors as that file has them under their first names.

    `type_of` says how a matrix is written; everything else is float32."""
    spec = read_model_spec(config)
    written: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    dense: dict[str, Tensor] = {}
    stacks: dict[str, list[tuple[str, Tensor]]] = {}
    for full_name, tensor in tensors.items():
        name = full_name.removeprefix("model.")
        if stack := re.fullmatch(r"altup_(unembed_)?projections\.\d\.weight", name):
            stacks.setdefault("altup_unembd_proj.weight" if stack[1] else "altup_proj.weight", []).append(
                (full_name, tensor)
            )
            continue
        layer = re.fullmatch(r"layers\.(\d+)\.(.*)", name)
        theirs = f"blk.{layer[1]}.{_NAMES[layer[2]]}" if layer else _NAMES[name]
        values = tensor.float().numpy()
        is_matrix = values.ndim > 1 and "router" not in name and "altup" not in name
        type = type_of(name) if is_matrix and values.shape[-1] % 32 == 0 else "F32"
        if spec.family == "gemma3" and name.endswith("norm.weight"):
            values = values + np.float32(1)
        if splits_experts and "gate_up_exps" in theirs:
            halves = np.split(values, 2, axis=1)
            numbers = []
            for half, word in zip(halves, ("gate", "up"), strict=True):
                octets, back = quantize(np.ascontiguousarray(half), type)
                written[theirs.replace("gate_up", word)] = (type, half.shape, octets)
                numbers.append(back)
            dense[full_name] = torch.from_numpy(np.concatenate(numbers, axis=1))
            continue
        octets, numbers_of = quantize(np.ascontiguousarray(values), type)
        written[theirs] = (type, values.shape, octets)
        shift = np.float32(1) if spec.family == "gemma3" and name.endswith("norm.weight") else np.float32(0)
        dense[full_name] = torch.from_numpy(numbers_of - shift)
    for theirs, parts in stacks.items():
        values = torch.stack([tensor for _, tensor in parts]).float().numpy()
        written[theirs] = ("F32", values.shape, values.tobytes())
        dense |= dict(parts)
    if spec.family == "gemma4":
        full = next(layer for layer in spec.layers if layer.attention == "global")
        rotated = full.rotary.num_rotated_pairs(full.head_dim)
        divisors = np.full(full.head_dim // 2, 1e30, np.float32)
        divisors[:rotated] = 1
        written["rope_freqs.weight"] = ("F32", divisors.shape, divisors.tobytes())
    return container({**config_metadata(config), **metadata}, written), dense
