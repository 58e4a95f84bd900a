"""Counts the bytes of a model's weights, unquantized or quantized, from its config alone.

Quantized checkpoints keep the matrices of attention, MLPs and experts in few bits, with a scale for a group of inputs
or for a row; everything else (embeddings, per-layer inputs, routers, norms) stays in the model's dtype. Reads no
weights.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from facet.errors import ConfigError
from facet.model.config_fields import ConfigFields, shown
from facet.model.weight_map import TensorTarget, tensor_targets
from facet.model_spec import ModelSpec

_QUANTIZED_PARTS = (".self_attn.", ".mlp.", ".experts.")
# Prefixes that checkpoints put before the names of the decoder's tensors.
_PREFIXES = ("", "model.", "model.language_model.", "language_model.model.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """Bits of a quantized matrix."""

    name: str
    num_bits: int
    group_size: int | None  # inputs of a row that share a scale; None: the whole row
    scale_bits: int
    zero_point_bits: int = 0  # beside every scale
    ignored: tuple[str, ...] = ()  # names left unquantized, or patterns after "re:"

    def matrix_bytes(self, target: TensorTarget) -> int:
        num_inputs = target.shape[-1]
        groups = 1 if self.group_size is None else -(-num_inputs // self.group_size)
        num_rows = target.num_values // num_inputs
        return num_rows * (num_inputs * self.num_bits + groups * (self.scale_bits + self.zero_point_bits)) // 8

    def applies_to(self, target: TensorTarget) -> bool:
        is_matrix = len(target.shape) > 1 and any(part in target.name for part in _QUANTIZED_PARTS)
        return is_matrix and not any(_matches(word, target.name) for word in self.ignored)

    @property
    def line(self) -> str:
        scales = "a row" if self.group_size is None else f"{self.group_size} inputs"
        return (
            f"{self.name}: matrices of attention, MLPs and experts in {self.num_bits} bits, with a scale for {scales}; "
            "embeddings, per-layer inputs, routers and norms stay unquantized"
        )


# What the flag gives, and what a quantization_config is brought to.
FORMATS: Mapping[str, WeightFormat] = {
    "int4": WeightFormat(name="int4", num_bits=4, group_size=32, scale_bits=16),
    "int8": WeightFormat(name="int8", num_bits=8, group_size=None, scale_bits=32),
    "fp8": WeightFormat(name="fp8", num_bits=8, group_size=None, scale_bits=32),
    "nvfp4": WeightFormat(name="nvfp4", num_bits=4, group_size=16, scale_bits=8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Where they go."""

    quantized: int
    unquantized: int

    @property
    def total(self) -> int:
        return self.quantized + self.unquantized


def weight_bytes(spec: ModelSpec, weight_format: WeightFormat | None, *, value_bytes: int) -> WeightBytes:
    """Of all tensors; `value_bytes` is what one unquantized value takes."""
    quantized = unquantized = 0
    for target in tensor_targets(spec):
        if weight_format is not None and weight_format.applies_to(target):
            quantized += weight_format.matrix_bytes(target)
        else:
            unquantized += target.num_values * value_bytes
    return WeightBytes(quantized=quantized, unquantized=unquantized)


def choose_weight_format(asked: str, group_size: int | None, config: Mapping[str, Any]) -> WeightFormat | None:
    """What --weight-format says, or, where it says auto, what the checkpoint's config.json does. None: unquantized."""
    if asked == "none":
        return None
    found = FORMATS[asked] if asked != "auto" else read_weight_format(config)
    if group_size is None:
        return found
    if found is None or group_size < 1:
        raise ConfigError(
            f"--weight-group-size is {group_size}, but must be 1 or more, and the weights quantized: --weight-format "
            f"{', '.join(FORMATS)}."
        )
    return replace(found, group_size=group_size)


def read_weight_format(config: Mapping[str, Any]) -> WeightFormat | None:
    """From quantization_config, wherever a config keeps it."""
    for fields in (ConfigFields(config), ConfigFields(config).section("text_config")):
        if "quantization_config" in fields:
            return _read(fields.section("quantization_config"))
    return None


def without_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the same model, unquantized."""
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    if isinstance(plain.get("text_config"), Mapping):
        plain["text_config"] = {k: v for k, v in plain["text_config"].items() if k != "quantization_config"}
    return plain


def _read(fields: ConfigFields) -> WeightFormat:
    method = fields.text("quant_method", "")
    if method == "compressed-tensors":
        return _read_compressed_tensors(fields)
    if method in ("awq", "gptq"):
        bits = fields.integer("bits", 4)
        has_zero_points = fields.boolean("zero_point") or not fields.boolean("sym", True)
        base = _by_bits(fields, "int", bits)
        return replace(
            base,
            group_size=fields.integer("group_size", 128),
            scale_bits=16,
            zero_point_bits=bits if has_zero_points else 0,
            ignored=_names(fields, "modules_to_not_convert"),
        )
    if method == "fp8":
        return replace(FORMATS["fp8"], ignored=_names(fields, "modules_to_not_convert"))
    if method == "modelopt":
        algorithm = fields.text("quant_algo", "").lower()
        if algorithm in FORMATS:
            return replace(FORMATS[algorithm], ignored=_names(fields, "exclude_modules") + _names(fields, "ignore"))
    raise ConfigError(
        f"config.json says the weights are quantized by {shown(method)}, which the plan cannot count. Say what they "
        f"are: --weight-format {', '.join(FORMATS)} (or none)."
    )


def _read_compressed_tensors(fields: ConfigFields) -> WeightFormat:
    groups = fields.section("config_groups")
    names = groups.names()
    if not names:
        raise fields.wrong("config_groups", "an object with a group")
    # Groups differ in what they apply to; published checkpoints of Gemma have one.
    weights = groups.section(names[0]).section("weights")
    bits, kind = weights.integer("num_bits", 8), weights.text("type", "int")
    group_size = weights.optional_integer("group_size", least=1) if weights.raw("group_size") != -1 else None
    base = _by_bits(weights, kind, bits)
    has_zero_points = not weights.boolean("symmetric", True)
    return replace(
        base,
        group_size=group_size,
        scale_bits=8 if base.name == "nvfp4" else 16,
        zero_point_bits=bits if has_zero_points else 0,
        ignored=_names(fields, "ignore"),
    )


def _by_bits(fields: ConfigFields, kind: str, bits: int) -> WeightFormat:
    names = {("int", 4): "int4", ("int", 8): "int8", ("float", 8): "fp8", ("float", 4): "nvfp4"}
    if (kind, bits) not in names:
        raise ConfigError(f"The weights are {bits}-bit {shown(kind)}; the plan can count {', '.join(FORMATS)}.")
    return FORMATS[names[kind, bits]]


def _names(fields: ConfigFields, name: str) -> tuple[str, ...]:
    value = fields.raw(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise fields.wrong(name, "a list of names")
    return tuple(value)


def _matches(word: str, name: str) -> bool:
    name = name.removesuffix(".weight")
    if word.startswith("re:"):
        try:
            return any(re.match(word[3:], prefix + name) for prefix in _PREFIXES)
        except re.error:
            raise ConfigError(f"config.json, quantization_config: {shown(word)} is not a pattern.") from None
    return any(word == prefix + name or (prefix + name).startswith(word + ".") for prefix in _PREFIXES)
