"""Matrices as GPTQ keeps them: codes of four or eight bits, packed along the inputs, perhaps with an order of groups.

Version 1 of the format stores zero points less one; version 2 as they are.
"""

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from facet.errors import CheckpointError, ConfigError
from facet.kernels.quantized import QuantizedMatrix
from facet.matrix_format import MatrixFormat, ScaleFormat
from facet.model.config_fields import ConfigFields, shown
from facet.model.quantized.scheme import (
    SCALE_DTYPES,
    Part,
    centred,
    check_group,
    check_parts,
    check_scales,
    is_natural_order,
    names_in,
    pack_codes,
    sort_inputs,
    unpack_words,
)
from facet.model.stored_tensor import StoredTensor


class Gptq:
    name = "gptq"
    suffixes = frozenset({"qweight", "qzeros", "scales", "g_idx"})
    notes: tuple[str, ...] = ()

    def __init__(self, fields: ConfigFields) -> None:
        version = fields.text("checkpoint_format", "gptq")
        if version not in ("gptq", "gptq_v2"):
            raise ConfigError(f"The weights are packed as {shown(version)}; Facet reads gptq and gptq_v2.")
        self._zero_offset = 1 if version == "gptq" else 0
        self._bits = fields.integer("bits", 4)
        if self._bits not in (4, 8):
            raise fields.wrong("bits", "4 or 8")
        self._group = None if fields.raw("group_size") == -1 else fields.integer("group_size", 128)
        self._is_symmetric = fields.boolean("sym", True)
        self._is_reordered = fields.boolean("desc_act")
        excluded = [word[2:] for word in fields.section("dynamic").names() if word.startswith("-:")]
        kept = [name for name, bits in fields.section("extra_config").values().items() if _is_kept(bits)]
        self._ignored = names_in(fields, "modules_to_not_convert") + tuple(kept)
        self._excluded = tuple(_pattern(word) for word in excluded)

    def format_of(self, names: Sequence[str], shape: Sequence[int]) -> MatrixFormat | None:
        is_ignored = any(word in name for word in self._ignored for name in names)
        is_excluded = any(pattern.match(name) for pattern in self._excluded for name in names)
        is_table = any("embed_tokens" in name or "lm_head" in name or "router" in name for name in names)
        return None if is_ignored or is_excluded or is_table else self._format("float16")

    def describe(self, module: str, parts: Mapping[str, StoredTensor], shape: Sequence[int]) -> MatrixFormat:
        num_rows, num_inputs = shape
        check_group(module, num_inputs, self._group)
        count = num_inputs // (self._group or num_inputs)
        layout = {
            "qweight": Part(("I32",), ((num_inputs * self._bits // 32, num_rows),)),
            "qzeros": Part(("I32",), ((count, num_rows * self._bits // 32),)),
            "scales": Part(tuple(SCALE_DTYPES), ((count, num_rows),)),
            "g_idx": Part(("I32", "I64"), ((num_inputs,),), is_needed=self._is_reordered),
        }
        check_parts(module, parts, layout)
        return self._format(SCALE_DTYPES[parts["scales"].dtype])

    def read(self, module: str, tensors: Mapping[str, Tensor], format: MatrixFormat) -> QuantizedMatrix:
        codes = unpack_words(tensors["qweight"].t(), self._bits)
        scales = check_scales(module, tensors["scales"]).t()
        # Added within the bits of a code: version 1 writes a zero point of 0 as the largest code.
        zeros = (unpack_words(tensors["qzeros"], self._bits) + self._zero_offset) & (2**self._bits - 1)
        zeros = zeros.t()
        if self._is_symmetric and not bool((zeros == 2 ** (self._bits - 1)).all()):
            raise CheckpointError(
                f"{module} has zero points of its own, but quantization_config says sym. Is checkpoint_format right?"
            )
        order = None
        if format.is_reordered:
            codes, order = sort_inputs(module, codes, tensors["g_idx"], scales.shape[1])
        elif "g_idx" in tensors and not is_natural_order(tensors["g_idx"], scales.shape[1]):
            raise CheckpointError(f"{module} has an order of groups (g_idx), but quantization_config says no desc_act.")
        if self._bits == 8:
            codes, zeros = centred(codes), centred(zeros)
        return QuantizedMatrix(
            format=format,
            codes=pack_codes(codes) if self._bits == 4 else codes,
            scales=scales,
            zeros=zeros if format.has_zeros else None,
            order=order,
        )

    def _format(self, scale_dtype: str) -> MatrixFormat:
        return MatrixFormat(
            codes="int8" if self._bits == 8 else "int4" if self._is_symmetric else "uint4",
            scales=ScaleFormat(dtype=scale_dtype, group=self._group),
            has_zeros=not self._is_symmetric,
            is_reordered=self._is_reordered,
        )


def _is_kept(entry: object) -> bool:
    """An AutoRound entry that leaves a module unquantized."""
    return isinstance(entry, dict) and entry.get("bits") == 16


def _pattern(word: str) -> "re.Pattern[str]":
    try:
        return re.compile(word)
    except re.error:
        raise ConfigError(f"config.json, quantization_config, dynamic: {shown(word)} is not a pattern.") from None
