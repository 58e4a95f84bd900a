"""Weights in few bits, and weights made of several: everything follows from a product and from rows looked up."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from facet.kernels import quantized
from facet.kernels.arithmetic import Arithmetic
from facet.kernels.moe.reference import sum_of_chosen
from facet.kernels.per_layer_input import MixArguments
from facet.kernels.per_layer_input.reference import mix_per_layer_inputs
from facet.kernels.quantized import QuantizedMatrix
from facet.kernels.quantized.quantize import quantize
from facet.kernels.rounded_rows import RowCodes
from facet.layers.weight import DenseWeight, Inputs, Values, Weight
from facet.matrix_format import MatrixFormat


class ProductWeight(Weight):
    """A weight that is known by its products and its rows."""

    arithmetic: Arithmetic

    @property
    @abstractmethod
    def has_kernels(self) -> bool:
        """Whether kernels of a GPU compute all of its products, rather than plain PyTorch, which no graph can hold."""

    @abstractmethod
    def product(self, x: Inputs, rows: slice | None = None, expert: int | None = None) -> Tensor: ...

    @abstractmethod
    def look_up(self, ids: Tensor) -> Tensor:
        """Rows of a table, in the type of activations; ids past its end take row 0."""

    def linear(self, x: Inputs, rows: slice | None = None) -> Tensor:
        return self.product(x, rows)

    def geglu_linear(self, x: Inputs, codes: RowCodes | None = None) -> Inputs:
        return self.arithmetic.geglu(self.product(x))

    def sparse_geglu_linear(self, x: Inputs, cutoff_deviations: float) -> Tensor:
        return self.arithmetic.sparse_geglu(self.product(x), cutoff_deviations)

    def gated_input_linear(self, x: Inputs, per_layer_input: Tensor) -> Tensor:
        return self.arithmetic.gate_per_layer_input(self.product(x), per_layer_input)

    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: Weight) -> Tensor:
        def run_expert(rows: Tensor, expert: int) -> Tensor:
            hidden = self.arithmetic.geglu(self.product(rows, expert=expert))
            return _expert_product(down, hidden, expert)

        return sum_of_chosen(x, weights, chosen, run_expert)

    def embed(self, token_ids: Tensor, scale: float) -> Tensor:
        return self.look_up(token_ids) * scale

    def mix_looked_up_inputs(
        self, context: Tensor, token_ids: Tensor, norm_weight: Tensor, **arguments: Unpack[MixArguments]
    ) -> Tensor:
        first = arguments["first_column"]
        columns = slice(first, first + context[0].numel())
        token = (self.look_up(token_ids)[:, columns] * arguments["token_scale"]).view(context.shape)
        return mix_per_layer_inputs(
            context, token, norm_weight, context_scale=arguments["context_scale"], eps=arguments["eps"]
        )

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Inputs:
        return self.arithmetic.rms_norm(x, weight, eps)

    def add_norm(
        self,
        residual: Tensor,
        update: Tensor,
        update_weight: Tensor,
        weight: Tensor | None,
        eps: float,
        scale: Tensor | None,
    ) -> tuple[Tensor, Inputs | None]:
        return self.arithmetic.add_norm(residual, update, update_weight, weight, eps, scale)


class QuantizedWeight(ProductWeight):
    """Codes and scales of one format, multiplied by whatever serves all formats."""

    codes: Tensor

    def __init__(self, matrix: QuantizedMatrix, *, dtype: torch.dtype, arithmetic: Arithmetic) -> None:
        super().__init__()
        self.format = matrix.format
        self.dtype = dtype  # of activations
        self.arithmetic = arithmetic
        self.is_of_experts = matrix.codes.dim() > 2
        self._replace_buffers(matrix.tensors())

    @classmethod
    def runs_on(cls, device: torch.device, format: MatrixFormat) -> bool:
        """Whether its kernels do."""
        return True

    @classmethod
    def prepared_bytes(cls, format: MatrixFormat, shape: Sequence[int]) -> int:
        """The bytes of the tensors that such a weight has after `prepare`."""
        return format.num_bytes(shape)

    @classmethod
    def prepared_table_bytes(cls, format: MatrixFormat, shape: Sequence[int]) -> int:
        """The same behind `prepare_table`."""
        return format.num_bytes(shape)

    @property
    def has_kernels(self) -> bool:
        has_any = quantized.has_kernels(self.codes.device, self.dtype)
        return has_any and (not self.is_of_experts or quantized.experts.serves(self.format))

    @property
    def matrix(self) -> QuantizedMatrix:
        return QuantizedMatrix(format=self.format, **dict(self.named_buffers()))

    def fill(self, values: Values, rows: slice) -> None:
        if isinstance(values, Tensor):
            values = quantize(values.to(self.matrix.codes.device), self.format)
        self.matrix.copy_rows(values, rows)

    def product(self, x: Inputs, rows: slice | None = None, expert: int | None = None) -> Tensor:
        arithmetic = self.arithmetic
        matrix = self._some(rows, expert)
        return quantized.linear(x, matrix, arithmetic.linear, in_one_chain=arithmetic.adds_in_one_chain)

    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: Weight) -> Tensor:
        if not self.has_kernels or type(down) is not type(self) or not down.has_kernels:
            return super().run_experts(x, weights, chosen, down)
        in_one_chain = self.arithmetic.adds_in_one_chain
        return quantized.experts.run(x, weights, chosen, self.matrix, down.matrix, in_one_chain=in_one_chain)

    def look_up(self, ids: Tensor) -> Tensor:
        matrix = self.matrix
        known = torch.where(ids < matrix.num_rows, ids, 0)
        return quantized.look_up(known, matrix).to(self.dtype)

    def _replace_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        for name in dict(self.named_buffers()):
            delattr(self, name)
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def _some(self, rows: slice | None, expert: int | None) -> QuantizedMatrix:
        matrix = self.matrix if expert is None else self.matrix.expert(expert)
        return matrix if rows is None else matrix.rows(rows)


class PartsWeight(ProductWeight):
    """Weights of several kinds, one below the other. `sizes` are the numbers of rows of each."""

    def __init__(self, parts: Sequence[Weight], sizes: Sequence[int], arithmetic: Arithmetic) -> None:
        super().__init__()
        assert len(parts) == len(sizes), "a size for each part"
        self.parts = nn.ModuleList(parts)
        self.sizes = tuple(sizes)
        self.arithmetic = arithmetic

    @property
    def has_kernels(self) -> bool:
        return all(not isinstance(part, ProductWeight) or part.has_kernels for part in self.parts)

    def fill(self, values: Values, rows: slice) -> None:
        (part, inner), *others = self._inside(rows)
        assert not others, "parts of several kinds are filled one by one"
        part.fill(values, inner)

    def prepare(self, *, is_gated: bool) -> None:
        """Prepares each weight by itself: an activation has the results of all parts before it."""
        for part in self.parts:
            assert isinstance(part, Weight)
            part.prepare(is_gated=False)

    def product(self, x: Tensor, rows: slice | None = None, expert: int | None = None) -> Tensor:
        return torch.cat(
            [
                part.linear(x, inner) if expert is None else _expert_product(part, x, expert)
                for part, inner in self._inside(rows or slice(None))
            ],
            dim=-1,
        )

    def look_up(self, ids: Tensor) -> Tensor:
        raise AssertionError("a table is of one kind")

    def _inside(self, rows: slice) -> list[tuple[Weight, slice]]:
        """The parts that have some of these rows, with the rows inside each."""
        first, end, _ = rows.indices(sum(self.sizes))
        found, start = [], 0
        for part, size in zip(self.parts, self.sizes, strict=True):
            inner = slice(max(first - start, 0), min(end - start, size))
            assert isinstance(part, Weight)
            if inner.start < inner.stop:
                found.append((part, inner))
            start += size
        return found


def _expert_product(weight: Weight, x: Tensor, expert: int) -> Tensor:
    if isinstance(weight, DenseWeight):
        return weight.arithmetic.linear(x, weight.values[expert])
    assert isinstance(weight, ProductWeight), "experts are dense, or known by their products"
    return weight.product(x, expert=expert)
