"""Matrices of FP8 codes as `quant_method: fp8` keeps them: with scales of blocks, or one for the whole matrix."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from facet.errors import ConfigError
from facet.kernels.quantized import QuantizedMatrix
from facet.matrix_format import MatrixFormat, Rounding, ScaleFormat
from facet.model.config_fields import ConfigFields, shown
from facet.model.quantized.scheme import (
    BLOCK_ROWS,
    SCALE_DTYPES,
    Part,
    check_parts,
    check_scales,
    names_in,
    spread_scales,
)
from facet.model.stored_tensor import StoredTensor


class Fp8:
    name = "fp8"
    suffixes = frozenset({"weight", "weight_scale", "weight_scale_inv", "input_scale"})
    notes: tuple[str, ...] = ()

    def __init__(self, fields: ConfigFields) -> None:
        if (fmt := fields.text("fmt", "e4m3")) != "e4m3":
            raise ConfigError(f"The weights are FP8 of the kind {shown(fmt)}; Facet reads e4m3.")
        size = fields.raw("weight_block_size")
        if size not in (None, [BLOCK_ROWS, 128]):
            raise fields.wrong("weight_block_size", "[128, 128]")
        scheme = fields.text("activation_scheme", "dynamic")
        if scheme not in ("dynamic", "static"):
            raise fields.wrong("activation_scheme", "dynamic or static")
        self._has_blocks = size is not None
        # Without blocks, dynamic means a scale for the whole batch, which would let company change answers: tokens have
        # their own instead.
        self._rounding: Rounding = (
            "fp8_group" if self._has_blocks else "fp8_static" if scheme == "static" else "fp8_token"
        )
        self._ignored = names_in(fields, "modules_to_not_convert") + names_in(fields, "ignored_layers")

    def format_of(self, names: Sequence[str], shape: Sequence[int]) -> MatrixFormat | None:
        is_ignored = any(word in name for word in self._ignored for name in names)
        is_table = any("embed_tokens" in name or "lm_head" in name for name in names)
        return None if is_ignored or is_table else self._format("float32")

    def describe(self, module: str, parts: Mapping[str, StoredTensor], shape: Sequence[int]) -> MatrixFormat:
        num_rows, num_inputs = shape
        layout = {"weight": Part(("F8_E4M3",), ((num_rows, num_inputs),))}
        if self._has_blocks:
            blocks = (-(-num_rows // BLOCK_ROWS), -(-num_inputs // 128))
            layout["weight_scale_inv"] = Part((*SCALE_DTYPES, "U8", "F8_E8M0"), (blocks,))
        else:
            layout["weight_scale"] = Part(tuple(SCALE_DTYPES), ((), (1,)))
            layout["input_scale"] = Part(tuple(SCALE_DTYPES), ((), (1,)), is_needed=self._rounding == "fp8_static")
        check_parts(module, parts, layout)
        scale = parts["weight_scale_inv" if self._has_blocks else "weight_scale"]
        return self._format(SCALE_DTYPES.get(scale.dtype, "float8_e8m0fnu"))

    def read(self, module: str, tensors: Mapping[str, Tensor], format: MatrixFormat) -> QuantizedMatrix:
        codes = tensors["weight"]
        scales = tensors["weight_scale_inv" if self._has_blocks else "weight_scale"]
        if scales.dtype == torch.uint8:
            scales = scales.view(torch.float8_e8m0fnu)
        return QuantizedMatrix(
            format=format,
            codes=codes,
            scales=spread_scales(check_scales(module, scales), codes.shape, format),
            input_scale=tensors["input_scale"].float().reshape(()) if format.has_input_scale else None,
        )

    def _format(self, scale_dtype: str) -> MatrixFormat:
        scales = ScaleFormat(dtype=scale_dtype, group=128 if self._has_blocks else None)
        return MatrixFormat(codes="fp8", scales=scales, rounding=self._rounding)
