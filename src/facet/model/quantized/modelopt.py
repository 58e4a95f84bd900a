"""Matrices as ModelOpt keeps them: FP8 with a scale for the matrix or each row, NVFP4, or both in one checkpoint."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from facet.errors import CheckpointError, ConfigError
from facet.kernels.quantized import QuantizedMatrix
from facet.matrix_format import MatrixFormat, Rounding, ScaleFormat
from facet.model.config_fields import ConfigFields, shown
from facet.model.quantized.compressed_tensors import FP4_INPUTS
from facet.model.quantized.scheme import (
    CACHE_SCALES,
    Part,
    check_group,
    check_parts,
    check_scales,
    names_in,
    spread_scales,
)
from facet.model.stored_tensor import StoredTensor

_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4")
_MIXED = "MIXED_PRECISION"


class ModelOpt:
    name = "modelopt"
    suffixes = frozenset({"weight", "weight_scale", "weight_scale_2", "input_scale"})

    def __init__(self, fields: ConfigFields) -> None:
        # By the names of layers, where each has its own; else one for all.
        self._by_layer: dict[str, str] | None = None
        self._algorithm = fields.text("quant_algo", "")
        if self._algorithm == _MIXED:
            layers = fields.section("quantized_layers")
            if not layers.names():
                raise fields.wrong("quantized_layers", "an object with the algorithm of every layer")
            self._by_layer = {_inside(name): _read_algorithm(layers.section(name)) for name in layers.names()}
        else:
            self._algorithm = _read_algorithm(fields)
        self._ignored = names_in(fields, "ignore") + names_in(fields, "exclude_modules")
        found = {self._algorithm} if self._by_layer is None else set(self._by_layer.values())
        self.notes: tuple[str, ...] = (FP4_INPUTS,) if "NVFP4" in found else ()
        has_cache_scales = fields.raw("kv_cache_scheme") is not None or fields.raw("kv_cache_quant_algo") is not None
        self.notes += (CACHE_SCALES,) if has_cache_scales else ()

    def format_of(self, names: Sequence[str], shape: Sequence[int]) -> MatrixFormat | None:
        if self._by_layer is not None:
            algorithm = next((self._by_layer[_inside(name)] for name in names if _inside(name) in self._by_layer), None)
            return None if algorithm is None else _format(algorithm)
        is_ignored = any(fnmatchcase(name, word) for word in self._ignored for name in names)
        is_table = any("embed_tokens" in name for name in names)
        return None if is_ignored or is_table else _format(self._algorithm)

    def describe(self, module: str, parts: Mapping[str, StoredTensor], shape: Sequence[int]) -> MatrixFormat:
        algorithm = self._algorithm if self._by_layer is None else self._by_layer.get(_inside(module))
        if algorithm is None:
            raise CheckpointError(f"{module} is quantized, but quantized_layers does not name it.")
        num_rows, num_inputs = shape
        number = Part(("F32",), ((), (1,)))
        if "NVFP4" in algorithm:
            check_group(module, num_inputs, 16)
            layout = {
                "weight": Part(("U8",), ((num_rows, num_inputs // 2),)),
                "weight_scale": Part(("F8_E4M3",), ((num_rows, num_inputs // 16),)),
                "weight_scale_2": number,
                "input_scale": Part(number.dtypes, number.shapes, is_needed=False),
            }
        else:
            layout = {"weight": Part(("F8_E4M3",), ((num_rows, num_inputs),)), "weight_scale": number}
            if algorithm == "FP8":
                layout["input_scale"] = number
            else:
                layout["weight_scale"] = Part(("F32",), ((num_rows, 1), (num_rows,)))
        check_parts(module, parts, layout)
        return _format(algorithm)

    def read(self, module: str, tensors: Mapping[str, Tensor], format: MatrixFormat) -> QuantizedMatrix:
        codes, scales = tensors["weight"], check_scales(module, tensors["weight_scale"])
        if format.codes == "fp4":
            whole = check_scales(module, tensors["weight_scale_2"])
            coarse = whole.reshape(1, 1).expand(len(codes), 1)
            return QuantizedMatrix(format=format, codes=codes, scales=scales, coarse_scales=coarse)
        return QuantizedMatrix(
            format=format,
            codes=codes,
            scales=spread_scales(scales, codes.shape, format),
            input_scale=tensors["input_scale"].reshape(()) if format.has_input_scale else None,
        )


def _read_algorithm(fields: ConfigFields) -> str:
    algorithm = fields.text("quant_algo", "")
    if algorithm not in _ALGORITHMS:
        raise ConfigError(
            f"ModelOpt quantized the weights with {shown(algorithm)}; Facet reads {', '.join(_ALGORITHMS)}, and "
            f"{_MIXED} of these."
        )
    if "NVFP4" in algorithm and fields.integer("group_size", 16) != 16:
        raise fields.wrong("group_size", "16")
    return algorithm


def _inside(name: str) -> str:
    """The name of a layer inside the decoder, whatever stands in front of it; experts with or without `moe`."""
    start = name.find("layers.")
    return name[max(start, 0) :].replace(".moe.experts.", ".experts.")


def _format(algorithm: str) -> MatrixFormat:
    row = ScaleFormat(dtype="float32", group=None)
    if "NVFP4" in algorithm:
        return MatrixFormat(codes="fp4", scales=ScaleFormat(dtype="float8_e4m3fn", group=16), coarse_scales=row)
    rounding: Rounding = "fp8_static" if algorithm == "FP8" else "fp8_token"
    return MatrixFormat(codes="fp8", scales=row, rounding=rounding)
