"""Matrices as ModelOpt keeps them: FP8 with one scale, or NVFP4, where the scale of the whole matrix multiplies."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from facet.errors import ConfigError
from facet.kernels.quantized import QuantizedMatrix
from facet.matrix_format import MatrixFormat, Rounding, ScaleFormat
from facet.model.config_fields import ConfigFields, shown
from facet.model.quantized.compressed_tensors import FP4_INPUTS
from facet.model.quantized.scheme import Part, check_group, check_parts, check_scales, names_in, spread_scales
from facet.model.stored_tensor import StoredTensor

_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4")


class ModelOpt:
    name = "modelopt"
    suffixes = frozenset({"weight", "weight_scale", "weight_scale_2", "input_scale"})

    def __init__(self, fields: ConfigFields) -> None:
        self._algorithm = fields.text("quant_algo", "")
        if self._algorithm not in _ALGORITHMS:
            raise ConfigError(
                f"ModelOpt quantized the weights with {shown(self._algorithm)}; Facet reads {', '.join(_ALGORITHMS)}."
            )
        if self._is_fp4 and fields.integer("group_size", 16) != 16:
            raise fields.wrong("group_size", "16")
        self._ignored = names_in(fields, "ignore") + names_in(fields, "exclude_modules")
        self.notes: tuple[str, ...] = (FP4_INPUTS,) if self._algorithm == "NVFP4" else ()

    @property
    def _is_fp4(self) -> bool:
        return "NVFP4" in self._algorithm

    def format_of(self, names: Sequence[str], shape: Sequence[int]) -> MatrixFormat | None:
        is_ignored = any(fnmatchcase(name, word) for word in self._ignored for name in names)
        is_table = any("embed_tokens" in name for name in names)
        return None if is_ignored or is_table else self._format

    def describe(self, module: str, parts: Mapping[str, StoredTensor], shape: Sequence[int]) -> MatrixFormat:
        num_rows, num_inputs = shape
        number = Part(("F32",), ((), (1,)))
        if self._is_fp4:
            check_group(module, num_inputs, 16)
            layout = {
                "weight": Part(("U8",), ((num_rows, num_inputs // 2),)),
                "weight_scale": Part(("F8_E4M3",), ((num_rows, num_inputs // 16),)),
                "weight_scale_2": number,
                "input_scale": Part(number.dtypes, number.shapes, is_needed=False),
            }
        else:
            layout = {"weight": Part(("F8_E4M3",), ((num_rows, num_inputs),)), "weight_scale": number}
            if self._algorithm == "FP8":
                layout["input_scale"] = number
            else:
                layout["weight_scale"] = Part(("F32",), ((num_rows, 1), (num_rows,)))
        check_parts(module, parts, layout)
        return self._format

    def read(self, module: str, tensors: Mapping[str, Tensor], format: MatrixFormat) -> QuantizedMatrix:
        codes, scales = tensors["weight"], check_scales(module, tensors["weight_scale"])
        if self._is_fp4:
            whole = check_scales(module, tensors["weight_scale_2"])
            coarse = whole.reshape(1, 1).expand(len(codes), 1)
            return QuantizedMatrix(format=format, codes=codes, scales=scales, coarse_scales=coarse)
        return QuantizedMatrix(
            format=format,
            codes=codes,
            scales=spread_scales(scales, codes.shape, format),
            input_scale=tensors["input_scale"].reshape(()) if format.has_input_scale else None,
        )

    @property
    def _format(self) -> MatrixFormat:
        row = ScaleFormat(dtype="float32", group=None)
        if self._is_fp4:
            return MatrixFormat(codes="fp4", scales=ScaleFormat(dtype="float8_e4m3fn", group=16), coarse_scales=row)
        rounding: Rounding = "fp8_static" if self._algorithm == "FP8" else "fp8_token"
        return MatrixFormat(codes="fp8", scales=row, rounding=rounding)
