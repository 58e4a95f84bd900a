"""Matrices of Gemma's own files for phones: 2, 4 or 8 bits, a scale for each row, and eight-bit activations.

Tables of embeddings are quantized too. Codes of two bits take four here.
"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from facet.errors import CheckpointError, ConfigError
from facet.kernels.quantized import QuantizedMatrix
from facet.matrix_format import MatrixFormat, ScaleFormat
from facet.model.config_fields import ConfigFields, shown
from facet.model.quantized.scheme import Part, check_parts, check_scales, names_in, pack_codes
from facet.model.stored_tensor import StoredTensor

_TABLE = ("embedding_quantized", "embedding_scale")
_ACTIVATIONS = ("input_activation_scale", "output_activation_scale")


class Gemma:
    name = "gemma"
    suffixes = frozenset({"weight", "weight_scale", *_TABLE, *_ACTIVATIONS})
    notes: tuple[str, ...] = ()

    def __init__(self, fields: ConfigFields) -> None:
        self._default_bits = _bits(fields)
        modules = fields.section("module_quant_configs")
        self._bits_of = tuple((_pattern(word), _bits(modules.section(word))) for word in modules.names())
        self._has_tables = fields.boolean("quantize_embeddings")
        self._ignored = tuple(_pattern(word) for word in names_in(fields, "modules_to_not_convert"))

    def format_of(self, names: Sequence[str], shape: Sequence[int]) -> MatrixFormat | None:
        is_table = any("embed_tokens" in name for name in names)
        if any(pattern.search(name) for pattern in self._ignored for name in names):
            return None
        return None if is_table and not self._has_tables else _format(self._bits(names), None, is_table=is_table)

    def describe(self, module: str, parts: Mapping[str, StoredTensor], shape: Sequence[int]) -> MatrixFormat:
        num_rows, num_inputs = shape
        bits = self._bits([module])
        codes = Part(("I8",) if bits == 8 else ("U8",), ((num_rows, -(-num_inputs * bits // 8)),))
        is_table = _TABLE[0] in parts
        if not is_table:
            layout = {"weight": codes, "weight_scale": Part(("F32",), ((num_rows, 1),))}
            layout |= {name: Part(("F32",), ((), (1,))) for name in _ACTIVATIONS}
            check_parts(module, parts, layout)
            return _format(bits, None, is_table=False)
        count = parts[_TABLE[1]].shape[-1] if _TABLE[1] in parts else 1
        if count < 1 or num_inputs % count:
            raise CheckpointError(f"{module}: {count} scales do not divide a row of {num_inputs}.")
        check_parts(module, parts, {_TABLE[0]: codes, _TABLE[1]: Part(("F32",), ((num_rows, count),))})
        return _format(bits, None if count == 1 else num_inputs // count, is_table=True)

    def read(self, module: str, tensors: Mapping[str, Tensor], format: MatrixFormat) -> QuantizedMatrix:
        is_table = _TABLE[0] in tensors
        codes, scales = (tensors[name] for name in (_TABLE if is_table else ("weight", "weight_scale")))
        bits = 8 if codes.dtype == torch.int8 else format.stored_bits or 4
        if bits == 2:
            # 0 to 3 mean -2 to 1: with six more they mean the same in four bits.
            apart = torch.stack([(codes >> shift) & 3 for shift in (0, 2, 4, 6)], dim=-1).flatten(-2)
            codes = pack_codes(apart + 6)
        return QuantizedMatrix(
            format=format,
            codes=codes,
            scales=check_scales(module, scales),
            input_scale=None if is_table else tensors[_ACTIVATIONS[0]].reshape(()),
            output_scale=None if is_table else tensors[_ACTIVATIONS[1]].reshape(()),
        )

    def _bits(self, names: Sequence[str]) -> int:
        """The first pattern that occurs in a name counts."""
        found = (bits for pattern, bits in self._bits_of if any(pattern.search(name) for name in names))
        return next(found, self._default_bits)


def _format(bits: int, group: int | None, *, is_table: bool) -> MatrixFormat:
    return MatrixFormat(
        codes="int8" if bits == 8 else "int4",
        scales=ScaleFormat(dtype="float32", group=group),
        rounding=None if is_table else "int8_static",
        rounds_outputs=not is_table,
        stored_bits=2 if bits == 2 else None,
    )


def _bits(fields: ConfigFields) -> int:
    bits = fields.integer("num_bits", 4)
    if bits not in (2, 4, 8):
        raise fields.wrong("num_bits", "2, 4 or 8")
    return bits


def _pattern(word: str) -> "re.Pattern[str]":
    try:
        return re.compile(word)
    except re.error:
        raise ConfigError(f"config.json, quantization_config: {shown(word)} is not a pattern.") from None
