"""Other kinds of weight, in plain PyTorch. No layer knows any of them."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self, Unpack

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.add_norm import add_norm
from facet.kernels.geglu import geglu, sparse_geglu
from facet.kernels.moe.reference import sum_of_chosen
from facet.kernels.per_layer_input import MixArguments, gate_per_layer_input
from facet.kernels.per_layer_input.reference import mix_per_layer_inputs
from facet.kernels.rms_norm import rms_norm
from facet.kernels.rounded_rows import RowCodes
from facet.layers.linear import Linear
from facet.layers.weight import DenseWeight, Inputs, Weight
from facet.model.gemma import Gemma

ALL = slice(None)


class PlainWeight(Weight):
    """Everything from two questions: a product with a matrix, and the numbers of a row."""

    @classmethod
    @abstractmethod
    def of(cls, values: Tensor) -> Self: ...

    @abstractmethod
    def dense(self) -> Tensor:
        """The numbers that a dense weight would hold in its place."""

    @abstractmethod
    def product(self, x: Inputs, rows: slice = ALL, expert: int | None = None) -> Tensor: ...

    @abstractmethod
    def looked_up(self, ids: Tensor) -> Tensor: ...

    def fill(self, values: Tensor, rows: slice) -> None:
        raise AssertionError("made of a dense weight, never filled")

    def linear(self, x: Inputs, rows: slice | None = None) -> Tensor:
        return self.product(x, rows or ALL)

    def geglu_linear(self, x: Inputs, codes: RowCodes | None = None) -> Tensor:
        return geglu(self.product(x))

    def sparse_geglu_linear(self, x: Inputs, cutoff_deviations: float) -> Tensor:
        return sparse_geglu(self.product(x), cutoff_deviations)

    def gated_input_linear(self, x: Inputs, per_layer_input: Tensor) -> Tensor:
        return gate_per_layer_input(self.product(x), per_layer_input)

    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: Weight) -> Tensor:
        assert isinstance(down, PlainWeight)

        def run_expert(rows: Tensor, expert: int) -> Tensor:
            return down.product(geglu(self.product(rows, expert=expert)), expert=expert)

        return sum_of_chosen(x, weights, chosen, run_expert)

    def embed(self, token_ids: Tensor, scale: float) -> Tensor:
        return self.looked_up(token_ids) * scale

    def mix_looked_up_inputs(
        self, context: Tensor, token_ids: Tensor, norm_weight: Tensor, **arguments: Unpack[MixArguments]
    ) -> Tensor:
        first = arguments["first_column"]
        columns = slice(first, first + context[0].numel())
        token = (self.looked_up(token_ids)[:, columns] * arguments["token_scale"]).view(context.shape)
        return mix_per_layer_inputs(
            context, token, norm_weight, context_scale=arguments["context_scale"], eps=arguments["eps"]
        )

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Inputs:
        return rms_norm(x, weight, eps)

    def add_norm(
        self,
        residual: Tensor,
        update: Tensor,
        update_weight: Tensor,
        weight: Tensor | None,
        eps: float,
        scale: Tensor | None,
    ) -> tuple[Tensor, Inputs | None]:
        return add_norm(residual, update, update_weight, weight, eps, scale)


def power_of_two_scales(values: Tensor) -> Tensor:
    """One for each row, by which its numbers fit into eight bits. Multiplying by it loses no bit of a product."""
    largest = values.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    return torch.exp2(torch.ceil(torch.log2(largest / 127)))


class Int8Rows(PlainWeight):
    """Eight bits for each number, one scale for each row, taken into account after the sum."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("codes", torch.zeros(shape, dtype=torch.int8))
        self.register_buffer("scales", torch.zeros(*shape[:-1], 1))

    @classmethod
    def of(cls, values: Tensor) -> Self:
        weight = cls(tuple(values.shape))
        weight.fill(values, ALL)
        return weight

    def fill(self, values: Tensor, rows: slice) -> None:
        scales = power_of_two_scales(values)
        self.scales[..., rows, :] = scales
        self.codes[..., rows, :] = (values / scales).round().to(torch.int8)

    def dense(self) -> Tensor:
        return self.codes * self.scales

    def product(self, x: Inputs, rows: slice = ALL, expert: int | None = None) -> Tensor:
        codes, scales = (t if expert is None else t[expert] for t in (self.codes, self.scales))
        return functional.linear(x, codes[rows].to(x.dtype)) * scales[rows, 0]

    def looked_up(self, ids: Tensor) -> Tensor:
        return self.codes[ids] * self.scales[ids]


class RoundedRows(NamedTuple):
    codes: Tensor
    scales: Tensor


def rounded(x: Tensor) -> RoundedRows:
    scales = power_of_two_scales(x)
    return RoundedRows((x / scales).round(), scales)


class Int8Products(Int8Rows):
    """The inputs too are rounded to eight bits, by the product itself."""

    num_rounded_before: ClassVar[int] = 0  # products whose inputs came rounded

    def product(self, x: Inputs, rows: slice = ALL, expert: int | None = None) -> Tensor:
        Int8Products.num_rounded_before += isinstance(x, RoundedRows)
        inputs = x if isinstance(x, RoundedRows) else rounded(x)
        return super().product(inputs.codes, rows, expert) * inputs.scales

    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: Weight) -> Tensor:
        Int8Products.num_rounded_before += isinstance(x, RoundedRows)
        return super().run_experts(x.codes * x.scales if isinstance(x, RoundedRows) else x, weights, chosen, down)


class Int8ProductsAfterNorms(Int8Products):
    """As its base, but a norm before a product rounds what it makes."""

    @property
    def row_codes(self) -> RowCodes:
        """Says that somebody else rounds; how, they know here."""
        return RowCodes(torch.int8, 127.0, -127.0, 127.0)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Inputs:
        return rounded(super().rms_norm(x, weight, eps))

    def add_norm(
        self,
        residual: Tensor,
        update: Tensor,
        update_weight: Tensor,
        weight: Tensor | None,
        eps: float,
        scale: Tensor | None,
    ) -> tuple[Tensor, Inputs | None]:
        stream, normed = super().add_norm(residual, update, update_weight, weight, eps, scale)
        return stream, None if normed is None else rounded(normed)


class TwoRanks(PlainWeight):
    """Half of the inputs on each of two ranks, whose results are summed before anything else happens to them."""

    def __init__(self, shares: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.shares = shares

    @classmethod
    def of(cls, values: Tensor) -> Self:
        first, second = values.tensor_split(2, dim=-1)
        return cls((first, second))

    def dense(self) -> Tensor:
        return torch.cat(self.shares, dim=-1)

    def product(self, x: Inputs, rows: slice = ALL, expert: int | None = None) -> Tensor:
        matrices = [share[rows] if expert is None else share[expert, rows] for share in self.shares]
        halves = x.tensor_split([matrices[0].shape[-1]], dim=-1)
        first, second = (functional.linear(half, matrix) for half, matrix in zip(halves, matrices, strict=True))
        return first + second

    def looked_up(self, ids: Tensor) -> Tensor:
        return torch.cat([share[ids] for share in self.shares], dim=-1)


class Adapted(PlainWeight):
    """A weight and an adapter of rank two beside it."""

    def __init__(self, base: Tensor, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.base, self.down, self.up = base, down, up

    @classmethod
    def of(cls, values: Tensor) -> Self:
        generator = torch.Generator().manual_seed(values.numel())
        *stack, num_out, num_in = values.shape
        down = torch.randn(*stack, 2, num_in, generator=generator) * num_in**-0.5
        up = torch.randn(*stack, num_out, 2, generator=generator) * 0.3
        return cls(values.clone(), down, up)

    def dense(self) -> Tensor:
        return self.base + self.up @ self.down

    def product(self, x: Inputs, rows: slice = ALL, expert: int | None = None) -> Tensor:
        base, down, up = (t if expert is None else t[expert] for t in (self.base, self.down, self.up))
        return functional.linear(x, base[rows]) + functional.linear(functional.linear(x, down), up[rows])

    def looked_up(self, ids: Tensor) -> Tensor:
        return self.base[ids] + self.up[ids] @ self.down


def change_weights(model: Gemma, change: Callable[[Tensor], Weight]) -> Gemma:
    """Every weight of a dense model by another, made from its numbers."""
    for module in list(model.modules()):
        if isinstance(module, Linear):
            assert isinstance(module.weight, DenseWeight)
            module.weight = change(module.weight.values.data)
    return model
