"""Quantized weights whose codes a processor multiplies as they are."""

from collections.abc import Sequence

import torch
from torch import Tensor

from facet.kernels.quantized import QuantizedMatrix, packed_int4
from facet.layers.quantized_weight import QuantizedWeight
from facet.layers.weight import Inputs
from facet.matrix_format import MatrixFormat


class PackedInt4Weight(QuantizedWeight):
    """Codes of four bits. Tables are never prepared: their rows are looked up."""

    _packed: packed_int4.PackedInt4 | None = None  # has the buffers once it is there

    @classmethod
    def runs_on(cls, device: torch.device, format: MatrixFormat) -> bool:
        return packed_int4.runs_on(device)

    @classmethod
    def prepared_bytes(cls, format: MatrixFormat, shape: Sequence[int]) -> int:
        return packed_int4.packed_bytes(format, shape)

    @property
    def matrix(self) -> QuantizedMatrix:
        return super().matrix if self._packed is None else packed_int4.unpack(self._packed)

    def prepare(self, *, is_gated: bool) -> None:
        self._packed = packed_int4.pack(self.matrix)
        self._replace_buffers(self._packed.tensors())

    def product(self, x: Inputs, rows: slice | None = None, expert: int | None = None) -> Tensor:
        if self._packed is None:
            return super().product(x, rows, expert)
        most_few_rows = self.arithmetic.most_rows_of_packed_int4
        return packed_int4.multiply(x, self._packed, rows, most_few_rows)
