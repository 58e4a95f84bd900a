"""Weights as values: how their numbers are kept, and which kernels compute with them.

A weight is rows of numbers: a matrix [outputs, inputs], the matrices of experts [experts, outputs, inputs], or a table
whose rows are looked up [ids, width]. Each kind of weight is a subclass of `Weight`. Layers use weights through
`Linear` and never learn the kind: a weight that is quantized, divided among ranks or adapted is another subclass, and
no layer changes.
"""

from abc import ABC, abstractmethod
from typing import Any, TypeAlias, Unpack

from torch import Tensor, nn

from facet.kernels.arithmetic import Arithmetic
from facet.kernels.embedding import embed
from facet.kernels.linear import normed_rings
from facet.kernels.linear.row_to_make import RowToMake
from facet.kernels.per_layer_input import MixArguments, mix_looked_up_inputs
from facet.kernels.quantized import QuantizedMatrix
from facet.kernels.rounded_rows import RowCodes

# What a product takes: a tensor [rows, inputs], or what the weight's own norms make of one: rows rounded to codes, for
# example, or one that the product has yet to make.
Inputs: TypeAlias = Any

# What a checkpoint holds of a weight: numbers, or codes with their scales.
Values: TypeAlias = Tensor | QuantizedMatrix


class Weight(nn.Module, ABC):
    """One kind of weight. `rows` names some of the outputs; None: all of them. What each operation means is said where
    the kernels define it."""

    @abstractmethod
    def fill(self, values: Values, rows: slice) -> None:
        """Take some rows, as a checkpoint holds them."""

    def prepare(self, *, is_gated: bool) -> None:
        """Once it is filled: take the order that its kernels want. `is_gated`: its products are those of a GeGLU."""

    def prepare_table(self) -> None:
        """The same of one whose rows are looked up, and of which products are taken too."""

    # Products

    @property
    def row_codes(self) -> RowCodes | None:
        """How this weight's products want their inputs rounded by whoever makes them; None: products see to it, or do
        not round."""
        return None

    @abstractmethod
    def linear(self, x: Inputs, rows: slice | None = None) -> Tensor: ...

    @abstractmethod
    def geglu_linear(self, x: Inputs, codes: RowCodes | None = None) -> Inputs:
        """`codes`: the `row_codes` of the weight that multiplies the result, if one alone does."""

    @abstractmethod
    def sparse_geglu_linear(self, x: Inputs, cutoff_deviations: float) -> Tensor: ...

    @abstractmethod
    def gated_input_linear(self, x: Inputs, per_layer_input: Tensor) -> Tensor: ...

    def runs_experts_with(self, down: "Weight") -> bool:
        """Whether kernels compute both products of experts, of which this is the first and `down` the second."""
        return type(self) is type(down)

    @abstractmethod
    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: "Weight") -> Tensor: ...

    # Rows looked up

    @abstractmethod
    def embed(self, token_ids: Tensor, scale: float) -> Tensor: ...

    @abstractmethod
    def mix_looked_up_inputs(
        self, context: Tensor, token_ids: Tensor, norm_weight: Tensor, **arguments: Unpack[MixArguments]
    ) -> Tensor: ...

    # Norms whose results this weight multiplies: a kind that rounds its inputs does both at once.

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Inputs: ...

    @abstractmethod
    def add_norm(
        self,
        residual: Tensor,
        update: Tensor,
        update_weight: Tensor,
        weight: Tensor | None,
        eps: float,
        scale: Tensor | None,
    ) -> tuple[Tensor, Inputs | None]:
        """The new stream, and what this weight's next product takes. None: the stream as it is.

        Nobody reads the stream before that product, which may have to make it.
        """


class DenseWeight(Weight):
    """Numbers of the activations' type."""

    def __init__(self, values: nn.Parameter, arithmetic: Arithmetic) -> None:
        super().__init__()
        self.values = values
        self.arithmetic = arithmetic

    def fill(self, values: Values, rows: slice) -> None:
        assert isinstance(values, Tensor), "codes are for quantized weights"
        self.values.data[..., rows, :].copy_(values)

    def linear(self, x: Inputs, rows: slice | None = None) -> Tensor:
        values = self.values if rows is None else self.values[rows]
        if isinstance(x, RowToMake):
            return normed_rings.linear(x, values)
        return self.arithmetic.linear(x, values)

    def geglu_linear(self, x: Inputs, codes: RowCodes | None = None) -> Tensor:
        if isinstance(x, RowToMake):
            return normed_rings.geglu_linear(x, self.values)
        return self.arithmetic.geglu_linear(x, self.values)

    def sparse_geglu_linear(self, x: Inputs, cutoff_deviations: float) -> Tensor:
        return self.arithmetic.sparse_geglu(self.linear(x), cutoff_deviations)

    def gated_input_linear(self, x: Inputs, per_layer_input: Tensor) -> Tensor:
        if isinstance(x, RowToMake):
            return normed_rings.gated_input_linear(x, self.values, per_layer_input)
        return self.arithmetic.gated_input_linear(x, self.values, per_layer_input)

    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: Weight) -> Tensor:
        assert isinstance(down, DenseWeight), "both matrices of an expert are of one kind"
        return self.arithmetic.run_experts(x, weights, chosen, self.values, down.values)

    def embed(self, token_ids: Tensor, scale: float) -> Tensor:
        return embed(token_ids, self.values, scale)

    def mix_looked_up_inputs(
        self, context: Tensor, token_ids: Tensor, norm_weight: Tensor, **arguments: Unpack[MixArguments]
    ) -> Tensor:
        return mix_looked_up_inputs(context, token_ids, self.values, norm_weight, **arguments)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
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
        row = normed_rings.row_left_to_product(self.values, residual, update, update_weight, weight, eps, scale)
        if row is not None:
            return row.stream, row
        return self.arithmetic.add_norm(residual, update, update_weight, weight, eps, scale)
