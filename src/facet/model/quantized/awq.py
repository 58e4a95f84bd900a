"""Matrices as AWQ keeps them: codes of four bits, transposed, and interleaved within a word."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from facet.errors import ConfigError
from facet.kernels.quantized import QuantizedMatrix
from facet.matrix_format import MatrixFormat, ScaleFormat
from facet.model.config_fields import ConfigFields, shown
from facet.model.quantized.scheme import (
    SCALE_DTYPES,
    Part,
    check_group,
    check_parts,
    check_scales,
    names_in,
    pack_codes,
    unpack_words,
)
from facet.model.stored_tensor import StoredTensor

# Output j of eight is in this place of a word.
_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]


class Awq:
    name = "awq"
    suffixes = frozenset({"qweight", "qzeros", "scales"})
    notes: tuple[str, ...] = ()

    def __init__(self, fields: ConfigFields) -> None:
        version = fields.text("version", "gemm")
        if version.lower() != "gemm":
            raise ConfigError(f"The weights are packed for AWQ's {shown(version)} kernels; Facet reads version gemm.")
        if fields.integer("bits", 4) != 4:
            raise fields.wrong("bits", "4")
        self._group = None if fields.raw("group_size") == -1 else fields.integer("group_size", 128)
        self._ignored = names_in(fields, "modules_to_not_convert")

    def format_of(self, names: Sequence[str], shape: Sequence[int]) -> MatrixFormat | None:
        is_ignored = any(word in name for word in self._ignored for name in names)
        is_table = any("embed_tokens" in name or "lm_head" in name or "router" in name for name in names)
        return None if is_ignored or is_table else self._format("float16")

    def describe(self, module: str, parts: Mapping[str, StoredTensor], shape: Sequence[int]) -> MatrixFormat:
        num_rows, num_inputs = shape
        check_group(module, num_inputs, self._group)
        count = num_inputs // (self._group or num_inputs)
        layout = {
            "qweight": Part(("I32",), ((num_inputs, num_rows // 8),)),
            "qzeros": Part(("I32",), ((count, num_rows // 8),)),
            "scales": Part(tuple(SCALE_DTYPES), ((count, num_rows),)),
        }
        check_parts(module, parts, layout)
        return self._format(SCALE_DTYPES[parts["scales"].dtype])

    def read(self, module: str, tensors: Mapping[str, Tensor], format: MatrixFormat) -> QuantizedMatrix:
        return QuantizedMatrix(
            format=format,
            codes=pack_codes(_outputs(tensors["qweight"]).t()),
            scales=check_scales(module, tensors["scales"]).t(),
            zeros=_outputs(tensors["qzeros"]).t(),
        )

    def _format(self, scale_dtype: str) -> MatrixFormat:
        return MatrixFormat(codes="uint4", scales=ScaleFormat(dtype=scale_dtype, group=self._group), has_zeros=True)


def _outputs(words: Tensor) -> Tensor:
    """Codes [inputs, outputs], one to a byte."""
    codes = unpack_words(words, 4)
    return codes.view(*codes.shape[:-1], -1, 8)[..., _PLACES].flatten(-2)
