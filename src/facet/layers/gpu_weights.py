"""Quantized weights whose codes kernels of a GPU multiply as they are."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from facet.kernels.arithmetic import Arithmetic
from facet.kernels.quantized import QuantizedMatrix, eight_bits, int4, int8_groups
from facet.kernels.rounded_rows import RowCodes
from facet.layers.quantized_weight import QuantizedWeight
from facet.layers.weight import Inputs, Weight
from facet.matrix_format import MatrixFormat


class EightBitsWeight(QuantizedWeight):
    """Codes of eight bits with a scale for each row. Where inputs are rounded too, the norm or the activation before
    a product rounds them, once for all products that follow."""

    def __init__(self, matrix: QuantizedMatrix, *, dtype: torch.dtype, arithmetic: Arithmetic) -> None:
        super().__init__(matrix, dtype=dtype, arithmetic=arithmetic)
        self._row_codes = None if self.format.rounding is None else eight_bits.row_codes(self.format)

    @classmethod
    def runs_on(cls, device: torch.device, format: MatrixFormat) -> bool:
        return eight_bits.runs_on(device, format)

    @property
    def has_kernels(self) -> bool:
        return not self.is_of_experts or self._row_codes is not None or super().has_kernels

    @property
    def row_codes(self) -> RowCodes | None:
        return self._row_codes

    def product(self, x: Inputs, rows: slice | None = None, expert: int | None = None) -> Tensor:
        return eight_bits.linear(x, self._some(rows, expert), self.arithmetic.choose_eight_bits)

    def geglu_linear(self, x: Inputs, codes: RowCodes | None = None) -> Inputs:
        choose = self.arithmetic.choose_eight_bits
        if codes is None:
            return eight_bits.geglu_linear(x, self.matrix, choose)
        return eight_bits.rounded_geglu_linear(x, self.matrix, choose, codes)

    def gated_input_linear(self, x: Inputs, per_layer_input: Tensor) -> Tensor:
        return eight_bits.gated_input_linear(x, self.matrix, per_layer_input, self.arithmetic.choose_eight_bits)

    def embed(self, token_ids: Tensor, scale: float) -> Tensor:
        return eight_bits.embed(token_ids, self.matrix, scale, self.dtype)

    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: Weight) -> Tensor:
        if self._row_codes is None:
            return super().run_experts(x, weights, chosen, down)
        assert isinstance(down, EightBitsWeight), "both matrices of an expert are of one kind"
        return self.arithmetic.run_rounded_experts(x, weights, chosen, self.matrix, down.matrix)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Inputs:
        if self._row_codes is None:
            return super().rms_norm(x, weight, eps)
        return self.arithmetic.rounded_rms_norm(x, weight, eps, self._row_codes)

    def add_norm(
        self,
        residual: Tensor,
        update: Tensor,
        update_weight: Tensor,
        weight: Tensor | None,
        eps: float,
        scale: Tensor | None,
    ) -> tuple[Tensor, Inputs | None]:
        if self._row_codes is None or weight is None:
            return super().add_norm(residual, update, update_weight, weight, eps, scale)
        return self.arithmetic.rounded_add_norm(residual, update, update_weight, weight, eps, scale, self._row_codes)


class Room(Protocol):
    """Kernels for matrices whose codes lie in an order of their own, and what puts them there."""

    def runs_on(self, device: torch.device) -> bool: ...
    def shuffled_bytes(self, format: MatrixFormat, shape: Sequence[int]) -> int: ...
    def shuffle(self, matrix: QuantizedMatrix, *, is_gated: bool) -> Any: ...
    def unshuffle(self, shuffled: Any) -> QuantizedMatrix: ...
    def multiply(self, x: Tensor, matrix: Any, per_layer_input: Tensor | None, most_few_rows: float) -> Tensor: ...


class ShuffledWeight(QuantizedWeight):
    """Codes in the order of their kernels once they are prepared."""

    _room: Room
    _shuffled: Any = None  # a matrix of that room; has the buffers

    @classmethod
    def runs_on(cls, device: torch.device, format: MatrixFormat) -> bool:
        return cls._room.runs_on(device)

    @classmethod
    def prepared_bytes(cls, format: MatrixFormat, shape: Sequence[int]) -> int:
        return cls._room.shuffled_bytes(format, shape)

    @property
    @abstractmethod
    def _most_few_rows(self) -> float:
        """The most rows that are multiplied by codes as they are."""

    @property
    def matrix(self) -> QuantizedMatrix:
        return super().matrix if self._shuffled is None else self._room.unshuffle(self._shuffled)

    @property
    def is_gated(self) -> bool:
        """Whether rows lie in an order in which only a GeGLU can be computed."""
        return self._shuffled is not None and bool(self._shuffled.is_gated)

    def prepare(self, *, is_gated: bool) -> None:
        self._shuffled = self._room.shuffle(self.matrix, is_gated=is_gated)
        self._replace_buffers(self._shuffled.tensors())

    @property
    def has_kernels(self) -> bool:
        return self._shuffled is not None or super().has_kernels

    def product(self, x: Inputs, rows: slice | None = None, expert: int | None = None) -> Tensor:
        if self._shuffled is None:
            return super().product(x, rows, expert)
        assert not self.is_gated, "gates and ups are interleaved"
        shuffled = self._shuffled if rows is None else self._shuffled.rows(rows)
        return self._room.multiply(x, shuffled, None, self._most_few_rows)

    def geglu_linear(self, x: Inputs, codes: RowCodes | None = None) -> Inputs:
        if not self.is_gated:
            return super().geglu_linear(x, codes)
        return self._room.multiply(x, self._shuffled, None, self._most_few_rows)

    def gated_input_linear(self, x: Inputs, per_layer_input: Tensor) -> Tensor:
        if self._shuffled is None:
            return super().gated_input_linear(x, per_layer_input)
        return self._room.multiply(x, self._shuffled, per_layer_input, self._most_few_rows)


class Int8GroupsWeight(ShuffledWeight):
    """Codes of eight bits in groups."""

    _room = int8_groups
    _shuffled: int8_groups.ShuffledInt8 | None = None

    def prepare_table(self) -> None:
        self.prepare(is_gated=False)

    @classmethod
    def prepared_table_bytes(cls, format: MatrixFormat, shape: Sequence[int]) -> int:
        return cls.prepared_bytes(format, shape)

    def look_up(self, ids: Tensor) -> Tensor:
        if self._shuffled is None or self._shuffled.is_gated:
            return super().look_up(ids)
        return int8_groups.look_up(ids, self._shuffled).to(self.dtype)

    @property
    def _most_few_rows(self) -> float:
        return self.arithmetic.most_rows_of_int8_groups


class Int4Weight(ShuffledWeight):
    """Codes of four bits. Tables are never prepared: their rows are looked up."""

    _room = int4
    _shuffled: int4.ShuffledInt4 | None = None

    @property
    def _most_few_rows(self) -> float:
        return self.arithmetic.most_rows_of_int4

    def product(self, x: Inputs, rows: slice | None = None, expert: int | None = None) -> Tensor:
        if self._shuffled is None or expert is None:
            return super().product(x, rows, expert)
        return int4.expert_linear(x, self._shuffled, expert, self.arithmetic.linear)

    def runs_experts_with(self, down: Weight) -> bool:
        """Whether the kernels take `down`: it may be of other formats, too."""
        return type(down) is type(self) or (type(down) is QuantizedWeight and down.has_kernels)

    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: Weight) -> Tensor:
        if self._shuffled is not None and isinstance(down, Int4Weight) and down._shuffled is not None:
            return int4.run_experts(x, weights, chosen, self._shuffled, down._shuffled, self._most_few_rows)
        if self._shuffled is not None and type(down) is QuantizedWeight and down.has_kernels:
            in_one_chain = self.arithmetic.adds_in_one_chain
            return int4.run_mixed_experts(x, weights, chosen, self._shuffled, down.matrix, in_one_chain=in_one_chain)
        return super().run_experts(x, weights, chosen, down)
