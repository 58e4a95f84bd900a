"""The modules that compute with weights: products without bias, experts, and rows looked up in a table.

What stands around a product is a step of its own: the norm before it (`RMSNorm` with `before`), and the addition to the
stream with the norm after it (`RMSNorm.add`). Between a product and its addition, the results of several ranks are
summed where each has a share of the inputs.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional

from facet.kernels.per_layer_input.reference import mix_per_layer_inputs
from facet.layers.placement import Placement
from facet.layers.rank_group import RankGroup
from facet.layers.weight import Inputs, Values, Weight

_ALL = slice(None)


class Linear(nn.Module):
    """x @ weight^T, the weight [outputs, inputs], or one for each expert.

    Products that read the same inputs may be packed into one: their rows are stacked. `parts` are the numbers of
    outputs of each, and a slice of parts names some of them.
    """

    weight: Weight

    def __init__(
        self,
        num_inputs: int,
        parts: int | Sequence[int],
        placement: Placement,
        *,
        num_experts: int | None = None,
        is_gated: bool = False,  # the parts are a gate and what it opens: `geglu` is what is asked for
        summed_over: RankGroup | None = None,  # ranks that have the other inputs; None: they are all here
    ) -> None:
        super().__init__()
        self._is_gated = is_gated
        self._group = summed_over
        self._starts = (0, *accumulate((parts,) if isinstance(parts, int) else parts))  # of each part, and the end
        matrix = (self._starts[-1], num_inputs)
        self.weight = placement.weight(*(matrix if num_experts is None else (num_experts, *matrix)))

    def forward(self, x: Inputs, parts: slice | None = None) -> Tensor:
        return self._summed(self.weight.linear(x, None if parts is None else self._rows(parts)))

    def geglu(self, x: Inputs, before: "Linear | None" = None) -> Inputs:
        """gelu(gate) * up, the two parts of this product. `before`: the product that takes the result, if one alone
        does."""
        return self.weight.geglu_linear(x, None if before is None else before.weight.row_codes)

    def sparse_geglu(self, x: Inputs, cutoff_deviations: float, group: RankGroup | None = None) -> Tensor:
        """Like `geglu`, but only the largest gates of each row let anything through. `group`: the ranks that have other
        gates."""
        if group is None:
            return self.weight.sparse_geglu_linear(x, cutoff_deviations)
        gate, up = self.weight.linear(x).chunk(2, dim=-1)
        num_gates = gate.shape[-1] * group.rank.size
        mean = group.sum(gate.float().sum(-1, keepdim=True)) / num_gates
        deviation = (group.sum((gate.float() - mean).square().sum(-1, keepdim=True)) / num_gates).sqrt()
        cut = (mean + deviation * cutoff_deviations).to(gate.dtype)
        return functional.gelu(torch.relu(gate - cut), approximate="tanh") * up

    def gated(self, x: Inputs, per_layer_input: Tensor) -> Tensor:
        """gelu(x @ weight^T) * per_layer_input."""
        return self.weight.gated_input_linear(x, per_layer_input)

    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: "Linear") -> Tensor:
        """Sum over a row's chosen experts of weight * down(geglu(x))."""
        return down._summed(self.weight.run_experts(x, weights, chosen, down.weight))

    def fill(self, values: Values, part: int | None = None) -> None:
        """Take what a checkpoint holds of one part, or of all."""
        self.weight.fill(values, self._rows(slice(None) if part is None else slice(part, part + 1)))

    def prepare(self) -> None:
        """Brings the weight to the order of its kernels, once everything is filled and before the first product."""
        self.weight.prepare(is_gated=self._is_gated)

    def _summed(self, product: Tensor) -> Tensor:
        return product if self._group is None else self._group.sum(product)

    def _rows(self, parts: slice) -> slice:
        first, end, _ = parts.indices(len(self._starts) - 1)
        return slice(self._starts[first], self._starts[end])


class Embedding(Linear):
    """A table of rows to look up, of which products can be taken too: a head may be tied to it.

    Ranks have `num_ids` rows each, in the order of the ranks. A row is looked up where it is and summed with the zeros
    of the others; products are of the rows that are here.
    """

    def __init__(self, num_ids: int, width: int, scale: float, placement: Placement, *, is_head: bool = False) -> None:
        super().__init__(width, num_ids, placement)
        self._is_head = is_head
        self._owners = placement.group
        self._num_ids = num_ids
        # As a tensor of the model's type holds the scale: it is rounded before it is applied, and that shows.
        self.scale = torch.tensor(scale, dtype=placement.dtype).item()

    def prepare(self) -> None:
        """Prepares the table of a head, whose rows stay where they can be looked up."""
        if self._is_head:
            self.weight.prepare_table()

    def look_up(self, token_ids: Tensor) -> Tensor:
        return self.weight.embed(token_ids, self.scale) if self._owners is None else self._gathered(token_ids)

    def mix(
        self,
        context: Tensor,
        token_ids: Tensor,
        norm_weight: Tensor,
        *,
        first_column: int,
        context_scale: float,
        eps: float,
    ) -> Tensor:
        """(norm(context * context_scale) + row) / sqrt(2), where the rows' columns count from `first_column`."""
        if self._owners is not None:
            columns = slice(first_column, first_column + context[0].numel())
            token = self._gathered(token_ids, columns).view(context.shape)
            return mix_per_layer_inputs(context, token, norm_weight, context_scale=context_scale, eps=eps)
        return self.weight.mix_looked_up_inputs(
            context,
            token_ids,
            norm_weight,
            first_column=first_column,
            token_scale=self.scale,
            context_scale=context_scale,
            eps=eps,
        )

    def _gathered(self, token_ids: Tensor, columns: slice = _ALL) -> Tensor:
        """Rows of the whole table. Ids past its end take row 0, as everywhere."""
        assert self._owners is not None, "ranks share the table"
        rank = self._owners.rank
        known = torch.where(token_ids < self._num_ids * rank.size, token_ids, 0) - rank.index * self._num_ids
        is_here = (known >= 0) & (known < self._num_ids)
        rows = self.weight.embed(torch.where(is_here, known, 0), self.scale)[:, columns]
        return self._owners.sum(rows * is_here.unsqueeze(-1))
