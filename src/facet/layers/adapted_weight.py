"""Weights with adapters beside them: every row may have an adapter of its own, or none."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.arithmetic import Arithmetic
from facet.kernels.low_rank import AdapterRows, LowRankAddition, LowRankMatrices, begin_addition
from facet.kernels.low_rank.matrices import padded_rank
from facet.kernels.moe import BeginAddition, run_changed_experts
from facet.kernels.rounded_rows import RowCodes
from facet.layers.quantized_weight import ProductWeight
from facet.layers.weight import DenseWeight, Inputs, Values, Weight


class RowAdapters:
    """Which adapter each row of a pass has: told at the beginning of the pass, asked by every product in it."""

    def __init__(self) -> None:
        self._of_pass: AdapterRows | None = None

    def choose(self, rows: AttentionRows) -> None:
        """The rows of the pass that begins. Without adapters of seats, no row has one."""
        numbers = None if rows.seat_adapters is None else rows.seat_adapters[rows.seats]
        self._of_pass = None if numbers is None else AdapterRows(numbers)

    def keep(self, rows: Tensor) -> None:
        """Only these rows go on."""
        if self._of_pass is not None:
            self._of_pass = AdapterRows(self._of_pass.numbers[rows])

    @property
    def of_pass(self) -> AdapterRows | None:
        """None: no row has one."""
        return self._of_pass


class AdaptedWeight(ProductWeight):
    """A weight of any kind, and the matrices of so many adapters.

    A pass in which no row has an adapter is computed by the weight as if there were none. In others, what is joined to
    a product elsewhere, such as the activation behind it, is apart from it: what adapters add comes in between. Tables
    are not adapted.
    """

    down: Tensor
    up: Tensor

    def __init__(
        self, base: Weight, rows: RowAdapters, arithmetic: Arithmetic, *, num_adapters: int, rank: int,
        num_inputs: int, parts: Sequence[int], dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        """`rank`: the largest of an adapter. `parts`: the numbers of outputs of products that are packed into this
        one."""
        super().__init__()
        self.base = base
        self._rows = rows
        self.arithmetic = arithmetic
        rank, starts = padded_rank(rank), [0]
        for size in parts:
            starts.append(starts[-1] + size)
        self._starts = tuple(starts)
        down, up = (num_adapters, len(parts), rank, num_inputs), (num_adapters, self._starts[-1], rank)
        self.register_buffer("down", torch.zeros(down, dtype=dtype, device=device))
        self.register_buffer("up", torch.zeros(up, dtype=dtype, device=device))

    def put(self, number: int, part: int, down: Tensor, up: Tensor) -> None:
        """Takes the matrices of an adapter beside one part: down [rank, inputs], up [outputs, rank]."""
        rank = len(down)
        self.down[number - 1, part, :rank] = down
        self.up[number - 1, self._starts[part] : self._starts[part + 1], :rank] = up

    def remove(self, number: int) -> None:
        """Leaves nothing of an adapter."""
        self.down[number - 1] = 0
        self.up[number - 1] = 0

    def fill(self, values: Values, rows: slice) -> None:
        self.base.fill(values, rows)

    def prepare(self, *, is_gated: bool) -> None:
        """An activation may have sums before it, not the product alone."""
        self.base.prepare(is_gated=False)

    @property
    def has_kernels(self) -> bool:
        return not isinstance(self.base, ProductWeight) or self.base.has_kernels

    @property
    def row_codes(self) -> RowCodes | None:
        return self.base.row_codes if self._rows.of_pass is None else None

    def product(self, x: Inputs, rows: slice | None = None, expert: int | None = None) -> Tensor:
        assert expert is None, "experts are another class"
        adapters = self._rows.of_pass
        if adapters is None:
            return self.base.linear(x, rows)
        first, end, _ = (rows or slice(None)).indices(self._starts[-1])
        addition = self._addition(x, adapters, first=first, end=end)
        product = self.base.linear(x, rows)
        addition.add_to(product)
        return product

    def _addition(self, x: Tensor, adapters: AdapterRows, **outputs: int) -> LowRankAddition:
        matrices = LowRankMatrices(down=self.down, up=self.up, starts=self._starts)
        return begin_addition(x, adapters, matrices, self.arithmetic.linear, **outputs)

    def geglu_linear(self, x: Inputs, codes: RowCodes | None = None) -> Inputs:
        adapters = self._rows.of_pass
        if adapters is None:
            return self.base.geglu_linear(x, codes)
        addition = self._addition(x, adapters)
        return addition.geglu_of(self.base.linear(x), self.arithmetic.geglu)

    def sparse_geglu_linear(self, x: Inputs, cutoff_deviations: float) -> Tensor:
        if self._rows.of_pass is None:
            return self.base.sparse_geglu_linear(x, cutoff_deviations)
        return super().sparse_geglu_linear(x, cutoff_deviations)

    def gated_input_linear(self, x: Inputs, per_layer_input: Tensor) -> Tensor:
        if self._rows.of_pass is None:
            return self.base.gated_input_linear(x, per_layer_input)
        return super().gated_input_linear(x, per_layer_input)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Inputs:
        if self._rows.of_pass is None:
            return self.base.rms_norm(x, weight, eps)
        return super().rms_norm(x, weight, eps)

    def add_norm(
        self,
        residual: Tensor,
        update: Tensor,
        update_weight: Tensor,
        weight: Tensor | None,
        eps: float,
        scale: Tensor | None,
    ) -> tuple[Tensor, Inputs | None]:
        if self._rows.of_pass is None:
            return self.base.add_norm(residual, update, update_weight, weight, eps, scale)
        return super().add_norm(residual, update, update_weight, weight, eps, scale)

    def look_up(self, ids: Tensor) -> Tensor:
        raise AssertionError("tables are not adapted")


class AdaptedExperts(AdaptedWeight):
    """The unquantized matrices of experts, those of an adapter beside each."""

    def __init__(
        self, base: DenseWeight, rows: RowAdapters, arithmetic: Arithmetic, *, num_adapters: int, rank: int
    ) -> None:
        self._num_experts, num_outputs, num_inputs = base.values.shape
        super().__init__(
            base,
            rows,
            arithmetic,
            num_adapters=num_adapters * self._num_experts,
            rank=rank,
            num_inputs=num_inputs,
            parts=(num_outputs,),
            dtype=base.values.dtype,
            device=base.values.device,
        )
        self._values = base.values

    def put(self, number: int, part: int, down: Tensor, up: Tensor) -> None:
        """down [experts, rank, inputs], up [experts, outputs, rank]."""
        places, rank = self._places(number), down.shape[1]
        self.down[places, part, :rank] = down
        self.up[places, :, :rank] = up

    def remove(self, number: int) -> None:
        self.down[self._places(number)] = 0
        self.up[self._places(number)] = 0

    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: Weight) -> Tensor:
        assert isinstance(down, AdaptedExperts), "both matrices of an expert are of one kind"
        adapters = self._rows.of_pass
        if adapters is None:
            return self.base.run_experts(x, weights, chosen, down.base)
        numbers = adapters.numbers
        # Each expert of an adapter counts as an adapter by itself.
        firsts = ((numbers - 1) * self._num_experts + 1)[:, None]
        pair_numbers = torch.where(numbers[:, None] > 0, firsts + chosen, 0).to(torch.int32).flatten()

        def additions(pairs: Tensor) -> tuple[BeginAddition, BeginAddition]:
            of_pairs = AdapterRows(pair_numbers[pairs])
            return partial(self._addition, adapters=of_pairs), partial(down._addition, adapters=of_pairs)

        return run_changed_experts(
            x,
            weights,
            chosen,
            self._values,
            down._values,
            additions,
            linear=self.arithmetic.linear,
            geglu=self.arithmetic.geglu,
        )

    def _places(self, number: int) -> slice:
        return slice((number - 1) * self._num_experts, number * self._num_experts)
