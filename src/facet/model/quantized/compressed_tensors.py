"""Matrices as compressed-tensors keeps them: integers packed into words or plain, FP8, NVFP4 and MXFP4.

A config has groups of modules with a scheme each, and a list of modules to ignore. Which tensors a module has decides
whether it is quantized, and how; the groups supply what names and shapes do not show.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from facet.errors import CheckpointError, ConfigError
from facet.kernels.quantized import QuantizedMatrix
from facet.matrix_format import CodeKind, MatrixFormat, Rounding, ScaleFormat
from facet.model.config_fields import ConfigFields, shown
from facet.model.quantized.scheme import (
    BLOCK_ROWS,
    CACHE_SCALES,
    SCALE_DTYPES,
    Part,
    centred,
    check_group,
    check_parts,
    check_scales,
    names_in,
    pack_codes,
    sort_inputs,
    spread_scales,
    unpack_words,
)
from facet.model.stored_tensor import StoredTensor

_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
    "dense",
)
_KINDS: dict[tuple[str, int], CodeKind] = {
    ("int", 4): "int4",
    ("int", 8): "int8",
    ("float", 8): "fp8",
    ("float", 4): "fp4",
}
FP4_INPUTS = "The checkpoint asks for activations in four bits; they stay as they are, and only weights have four bits."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """One of the groups in config_groups."""

    targets: tuple[str, ...]
    kind: CodeKind  # int4, int8, fp8 or fp4
    strategy: str  # tensor, channel, group or block
    size: int | None  # of a group, or of a block along the inputs
    is_symmetric: bool
    is_reordered: bool
    rounding: Rounding | None


class CompressedTensors:
    name = "compressed-tensors"
    suffixes = frozenset(
        f"weight{end}" for end in ("", "_packed", "_scale", "_zero_point", "_shape", "_g_idx", "_global_scale")
    ) | {"input_scale", "input_global_scale"}

    def __init__(self, fields: ConfigFields) -> None:
        self._groups = tuple(_read_group(fields, section) for section in _sections(fields))
        self._ignored = names_in(fields, "ignore")
        inputs = [section.section("input_activations") for section in _sections(fields)]
        self.notes: tuple[str, ...] = (FP4_INPUTS,) if any(each.raw("num_bits") == 4 for each in inputs) else ()
        self.notes += () if fields.raw("kv_cache_scheme") is None else (CACHE_SCALES,)

    def format_of(self, names: Sequence[str], shape: Sequence[int]) -> MatrixFormat | None:
        if any(_matches(word, name) for word in self._ignored for name in names):
            return None
        group = self._group_of(names)
        return None if group is None else _format(group, "bfloat16", has_order=group.is_reordered)

    def describe(self, module: str, parts: Mapping[str, StoredTensor], shape: Sequence[int]) -> MatrixFormat:
        first = self._group_of([module])
        candidates = [*([] if first is None else [first]), *(group for group in self._groups if group != first)]
        if not candidates:
            raise CheckpointError(f"{module} is quantized, but quantization_config has no group for it.")
        errors: list[CheckpointError] = []
        for group in candidates:  # the group that a module belongs to first, but what is stored decides
            try:
                return _describe(module, parts, shape, group)
            except CheckpointError as error:
                errors.append(error)
        raise errors[0]

    def read(self, module: str, tensors: Mapping[str, Tensor], format: MatrixFormat) -> QuantizedMatrix:
        if format.codes == "fp4":
            return _read_fp4(module, tensors, format)
        input_scale = tensors["input_scale"].float().reshape(()) if format.has_input_scale else None
        if "weight" in tensors:
            codes, zeros = tensors["weight"], tensors.get("weight_zero_point")
            scales = spread_scales(check_scales(module, tensors["weight_scale"]), codes.shape, format)
            return QuantizedMatrix(
                format=format,
                codes=codes,
                scales=scales,
                zeros=None if zeros is None or not format.has_zeros else spread_scales(zeros, codes.shape, format),
                input_scale=input_scale,
            )
        return _read_packed(module, tensors, format, input_scale)

    def _group_of(self, names: Sequence[str]) -> _Group | None:
        """The group whose target fits best: a name, else a pattern, else the class."""
        ranked = [
            (rank, group)
            for group in self._groups
            for target in group.targets
            if (rank := _rank(target, names)) is not None
        ]
        return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _sections(fields: ConfigFields) -> list[ConfigFields]:
    groups = fields.section("config_groups")
    if not groups.names():
        raise fields.wrong("config_groups", "an object with a group")
    return [groups.section(name) for name in groups.names()]


def _read_group(fields: ConfigFields, section: ConfigFields) -> _Group:
    format = section.text("format", fields.text("format", "mixed-precision"))
    if format not in _FORMATS:
        raise ConfigError(
            f"The weights are stored as {shown(format)}, which Facet does not read. It reads {', '.join(_FORMATS)}."
        )
    weights = section.section("weights")
    kind = (weights.text("type", "int"), weights.integer("num_bits", 8))
    if kind not in _KINDS:
        raise ConfigError(
            f"The weights are {kind[1]}-bit {shown(kind[0])}, which Facet does not read. It reads int of 4 and 8 bits, "
            "and float of 4 and 8."
        )
    if section.raw("output_activations") is not None:
        raise ConfigError("The checkpoint rounds outputs of its layers (output_activations), which Facet does not do.")
    size = None if weights.raw("group_size") == -1 else weights.optional_integer("group_size", least=1)
    strategy = weights.text("strategy", "channel" if weights.raw("group_size") == -1 else "group" if size else "tensor")
    if strategy not in ("tensor", "channel", "group", "tensor_group", "block"):
        raise weights.wrong("strategy", "tensor, channel, group, tensor_group or block")
    if strategy in ("group", "tensor_group") and size is None:
        raise weights.wrong("group_size", "given where strategy is group")
    return _Group(
        targets=names_in(section, "targets") or ("Linear",),
        kind=_KINDS[kind],
        strategy="group" if strategy == "tensor_group" else strategy,
        size=_read_block(weights) if strategy == "block" else size if "group" in strategy else None,
        is_symmetric=weights.boolean("symmetric", True),
        is_reordered=weights.raw("actorder") in ("group", "dynamic"),
        rounding=_read_rounding(section.section("input_activations")),
    )


def _read_block(weights: ConfigFields) -> int:
    """Inputs of a block. Older files write its size as "128x128"."""
    value = weights.raw("block_structure")
    sizes = value.split("x") if isinstance(value, str) else value
    try:
        rows, inputs = (int(size) for size in sizes)
    except (TypeError, ValueError):
        raise weights.wrong("block_structure", "[128, 128]") from None
    if rows != BLOCK_ROWS or inputs < 1:
        raise weights.wrong("block_structure", "[128, 128]")
    return inputs


def _read_rounding(inputs: ConfigFields) -> Rounding | None:
    if not inputs.names() or inputs.raw("num_bits") == 4:
        return None
    kind, strategy = inputs.text("type", "int"), inputs.text("strategy", "tensor")
    is_dynamic = inputs.raw("dynamic") is not False and inputs.raw("dynamic") is not None
    if inputs.integer("num_bits", 8) != 8 or not inputs.boolean("symmetric", True):
        raise ConfigError(
            "The checkpoint rounds activations, but not to eight bits around zero: Facet does not do that."
        )
    if is_dynamic and kind == "float" and strategy == "group":
        if inputs.integer("group_size", 128) != 128:
            raise inputs.wrong("group_size", "128")
        return "fp8_group"
    # A scale for the whole batch would let company change answers: tokens have their own instead.
    if is_dynamic and strategy in ("token", "tensor"):
        return "int8_token" if kind == "int" else "fp8_token"
    if not is_dynamic and strategy == "tensor":
        return "int8_static" if kind == "int" else "fp8_static"
    raise inputs.wrong("strategy", "token, or tensor")


def _format(group: _Group, scale_dtype: str, *, has_order: bool) -> MatrixFormat:
    if group.kind == "fp4":
        if group.size == 16:
            fine = ScaleFormat(dtype="float8_e4m3fn", group=16)
            return MatrixFormat(codes="fp4", scales=fine, coarse_scales=ScaleFormat(dtype="float32", group=None))
        return MatrixFormat(codes="fp4", scales=ScaleFormat(dtype="float8_e8m0fnu", group=32))
    return MatrixFormat(
        codes=group.kind if group.is_symmetric or group.kind != "int4" else "uint4",
        scales=ScaleFormat(dtype=scale_dtype, group=group.size),
        has_zeros=not group.is_symmetric,
        is_reordered=has_order,
        rounding=group.rounding,
    )


def _describe(module: str, parts: Mapping[str, StoredTensor], shape: Sequence[int], group: _Group) -> MatrixFormat:
    num_rows, num_inputs = shape
    if group.strategy == "group":
        check_group(module, num_inputs, group.size)
    floats = tuple(SCALE_DTYPES)
    if group.kind == "fp4":
        if group.size not in (16, 32):
            raise CheckpointError(
                f"{module}: four-bit floats come in groups of 16 or 32, but group_size is {group.size}."
            )
        layout = {"weight_packed": Part(("U8",), ((num_rows, num_inputs // 2),))}
        scales = ((num_rows, num_inputs // group.size),)
        if group.size == 16:
            layout["weight_scale"] = Part(("F8_E4M3",), scales)
            layout["weight_global_scale"] = Part(("F32",), ((1,), ()))
            layout["input_global_scale"] = Part(("F32",), ((1,), ()), is_needed=False)
        else:
            layout["weight_scale"] = Part(("U8", "F8_E8M0"), scales)
        check_parts(module, parts, layout)
        return _format(group, "float32", has_order=False)
    count = ScaleFormat(dtype="float32", group=group.size).count(num_inputs)
    rows = -(-num_rows // BLOCK_ROWS)
    scale_shapes = {
        "tensor": ((1,), (), (1, 1)),
        "channel": ((num_rows, 1), (num_rows,)),
        "group": ((num_rows, count),),
        "block": ((rows, count),),
    }[group.strategy]
    layout = {"weight_scale": Part(floats, scale_shapes)}
    if group.kind == "fp8" or (group.kind == "int8" and "weight" in parts):
        layout["weight"] = Part(("F8_E4M3",) if group.kind == "fp8" else ("I8",), ((num_rows, num_inputs),))
        layout["weight_zero_point"] = Part(("I8",), scale_shapes, is_needed=not group.is_symmetric)
    else:
        bits = 4 if group.kind == "int4" else 8
        layout["weight_packed"] = Part(("I32",), ((num_rows, -(-num_inputs * bits // 32)),))
        zeros = (-(-num_rows * bits // 32), count)
        layout["weight_zero_point"] = Part(("I32",), (zeros,), is_needed=not group.is_symmetric)
        if group.is_symmetric:  # old files have zeros of all kinds there, which mean nothing
            layout["weight_zero_point"] = Part(("I32", "I8"), (zeros, (num_rows, count)), is_needed=False)
        layout["weight_shape"] = Part(("I64", "I32"), ((2,),), is_needed=False)
        layout["weight_g_idx"] = Part(("I32", "I64"), ((num_inputs,),), is_needed=False)
    if group.rounding in ("int8_static", "fp8_static"):
        layout["input_scale"] = Part(floats, ((1,), ()))
    check_parts(module, parts, layout)
    return _format(group, SCALE_DTYPES[parts["weight_scale"].dtype], has_order="weight_g_idx" in parts)


def _read_packed(
    module: str, tensors: Mapping[str, Tensor], format: MatrixFormat, input_scale: Tensor | None
) -> QuantizedMatrix:
    words, bits = tensors["weight_packed"], format.code_bits
    codes = unpack_words(words, bits)
    if "weight_shape" in tensors:
        shape = tensors["weight_shape"].tolist()
        if shape[0] != len(words) or -(-shape[1] * bits // 32) != words.shape[1]:
            raise CheckpointError(f"{module}: weight_shape says {shape}, but weight_packed is {list(words.shape)}.")
    scales = spread_scales(check_scales(module, tensors["weight_scale"]), codes.shape, format)
    zeros = None
    if format.has_zeros:
        zeros = unpack_words(tensors["weight_zero_point"].t(), bits).t()[: len(words)]
        zeros = zeros if bits == 4 else centred(zeros)
    order = None
    if format.is_reordered:
        groups = tensors["weight_g_idx"]
        if bool((groups == -1).all()):
            groups = torch.arange(codes.shape[1]) // (codes.shape[1] // scales.shape[1])
        codes, order = sort_inputs(module, codes, groups, scales.shape[1])
    return QuantizedMatrix(
        format=format,
        codes=pack_codes(codes) if bits == 4 else centred(codes),
        scales=scales,
        zeros=zeros,
        order=order,
        input_scale=input_scale,
    )


def _read_fp4(module: str, tensors: Mapping[str, Tensor], format: MatrixFormat) -> QuantizedMatrix:
    packed, scales = tensors["weight_packed"], tensors["weight_scale"]
    if format.coarse_scales is None:
        scales = scales.view(torch.float8_e8m0fnu)
        return QuantizedMatrix(format=format, codes=packed, scales=check_scales(module, scales))
    # Here the scale of the whole tensor divides.
    whole = check_scales(module, 1.0 / tensors["weight_global_scale"].float())
    return QuantizedMatrix(
        format=format,
        codes=packed,
        scales=check_scales(module, scales),
        coarse_scales=whole.reshape(1, 1).expand(len(packed), 1),
    )


def _rank(target: str, names: Sequence[str]) -> int | None:
    """How well a target fits: a name is better than a pattern, and that than a class."""
    if target in names:
        return 0
    if target.startswith("re:"):
        return 1 if any(_matches(target, name) for name in names) else None
    is_table = any(name.endswith(("embed_tokens", "embed_tokens_per_layer")) for name in names)
    return 2 if target == ("Embedding" if is_table else "Linear") else None


def _matches(word: str, name: str) -> bool:
    if not word.startswith("re:"):
        return word == name
    try:
        return re.match(word[3:], name) is not None
    except re.error:
        raise ConfigError(f"config.json, quantization_config: {shown(word)} is not a pattern.") from None
