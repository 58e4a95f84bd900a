"""Weights in few bits, and weights made of several: everything follows from a product and from rows looked up."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from facet.kernels import quantized
from facet.kernels.arithmetic import Arithmetic
from facet.kernels.moe.reference import sum_of_chosen
from facet.kernels.per_layer_input import MixArguments
from facet.kernels.per_layer_input.reference import mix_per_layer_inputs
from facet.kernels.quantized import QuantizedMatrix, eight_bits, int4
from facet.kernels.quantized.eight_bits import row_codes
from facet.kernels.quantized.quantize import quantize
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

    def geglu_linear(self, x: Inputs) -> Tensor:
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
        self, residual: Tensor, update: Tensor, update_weight: Tensor, weight: Tensor, eps: float, scale: Tensor | None
    ) -> tuple[Tensor, Inputs]:
        return self.arithmetic.add_norm(residual, update, update_weight, weight, eps, scale)


class QuantizedWeight(ProductWeight):
    """Codes and scales of one format."""

    codes: Tensor
    scales: Tensor

    def __init__(
        self,
        format: MatrixFormat,
        shape: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        arithmetic: Arithmetic,
    ) -> None:
        super().__init__()
        self.format = format
        self.dtype = dtype  # of activations
        self.arithmetic = arithmetic
        for name, tensor in QuantizedMatrix.empty(format, shape, device).tensors().items():
            self.register_buffer(name, tensor)
        self._is_of_experts = len(shape) > 2
        self._is_of_eight_bits = dtype.itemsize == 2 and eight_bits.serves(format, shape[-1])
        self._is_of_eight_bits &= eight_bits.runs_on(device, format)
        self._is_of_four_bits = dtype == torch.bfloat16 and int4.can_shuffle(format, shape[-2])
        self._is_of_four_bits &= device.type == "cuda" and not self._is_of_experts
        self._shuffled: int4.ShuffledInt4 | None = None  # has the buffers, once they are in its order
        # How inputs are rounded. A norm does it, so that several products of its result need not.
        self._row_codes = row_codes(format) if self._is_of_eight_bits and format.rounding is not None else None

    @property
    def has_kernels(self) -> bool:
        return self._rounds_for_experts if self._is_of_experts else quantized.has_kernels(self.codes.device, self.dtype)

    @property
    def matrix(self) -> QuantizedMatrix:
        if self._shuffled is not None:
            return int4.unshuffle(self._shuffled)
        return QuantizedMatrix(format=self.format, **dict(self.named_buffers()))

    @property
    def is_gated(self) -> bool:
        """Whether its rows lie in an order in which only a GeGLU can be computed."""
        return self._shuffled is not None and self._shuffled.is_gated

    def prepare(self, *, is_gated: bool) -> None:
        if self._is_of_four_bits:
            self._shuffled = int4.shuffle(self.matrix, is_gated=is_gated)
            self.codes, self.scales = self._shuffled.codes, self._shuffled.scales

    def fill(self, values: Values, rows: slice) -> None:
        if isinstance(values, Tensor):
            values = quantize(values.to(self.matrix.codes.device), self.format)
        self.matrix.copy_rows(values, rows)

    def product(self, x: Inputs, rows: slice | None = None, expert: int | None = None) -> Tensor:
        if self._shuffled is not None:
            shuffled = self._shuffled if rows is None else self._shuffled.rows(rows)
            return int4.linear(x, shuffled, self.arithmetic.most_rows_of_int4)
        matrix = self.matrix if expert is None else self.matrix.expert(expert)
        if rows is not None:
            matrix = matrix.rows(rows)
        if self._is_of_eight_bits:
            return eight_bits.linear(x, matrix, self.arithmetic.choose_eight_bits)
        return quantized.linear(x, matrix, self.arithmetic.linear)

    def geglu_linear(self, x: Inputs) -> Tensor:
        if self._shuffled is not None:
            return int4.geglu_linear(x, self._shuffled, self.arithmetic.most_rows_of_int4)
        if self._is_of_eight_bits:
            return eight_bits.geglu_linear(x, self.matrix, self.arithmetic.choose_eight_bits)
        return super().geglu_linear(x)

    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: Weight) -> Tensor:
        if not self._rounds_for_experts:
            return super().run_experts(x, weights, chosen, down)
        assert isinstance(down, QuantizedWeight), "both matrices of an expert are of one kind, or have no kernels"
        return self.arithmetic.run_rounded_experts(x, weights, chosen, self.matrix, down.matrix)

    def compute_plainly(self) -> None:
        """Use no kernels from now on."""
        self._is_of_eight_bits = self._is_of_four_bits = False
        self._row_codes = None

    @property
    def _rounds_for_experts(self) -> bool:
        return self._is_of_experts and self._row_codes is not None

    def gated_input_linear(self, x: Inputs, per_layer_input: Tensor) -> Tensor:
        if self._shuffled is not None:
            return int4.gated_input_linear(x, self._shuffled, per_layer_input, self.arithmetic.most_rows_of_int4)
        if self._is_of_eight_bits:
            return eight_bits.gated_input_linear(x, self.matrix, per_layer_input, self.arithmetic.choose_eight_bits)
        return super().gated_input_linear(x, per_layer_input)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Inputs:
        if self._row_codes is None:
            return super().rms_norm(x, weight, eps)
        return self.arithmetic.rounded_rms_norm(x, weight, eps, self._row_codes)

    def add_norm(
        self, residual: Tensor, update: Tensor, update_weight: Tensor, weight: Tensor, eps: float, scale: Tensor | None
    ) -> tuple[Tensor, Inputs]:
        if self._row_codes is None:
            return super().add_norm(residual, update, update_weight, weight, eps, scale)
        return self.arithmetic.rounded_add_norm(residual, update, update_weight, weight, eps, scale, self._row_codes)

    def look_up(self, ids: Tensor) -> Tensor:
        matrix = self.matrix
        known = torch.where(ids < matrix.num_rows, ids, 0)
        return quantized.look_up(known, matrix).to(self.dtype)


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
        """Each by itself: an activation has the results of all parts before it."""
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
