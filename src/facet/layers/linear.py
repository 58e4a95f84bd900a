"""The modules that compute with weights: products without bias, experts, and rows looked up in a table.

What stands around a product is a step of its own: the norm before it (`RMSNorm` with `before`), and the addition to the
stream with the norm after it (`RMSNorm.add`). Between a product and its addition, results of several devices can be
summed.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from facet.layers.placement import Placement
from facet.layers.weight import Inputs, Values, Weight


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
    ) -> None:
        super().__init__()
        self._is_gated = is_gated
        self._starts = (0, *accumulate((parts,) if isinstance(parts, int) else parts))  # of each part, and the end
        matrix = (self._starts[-1], num_inputs)
        self.weight = placement.weight(*(matrix if num_experts is None else (num_experts, *matrix)))

    def forward(self, x: Inputs, parts: slice | None = None) -> Tensor:
        return self.weight.linear(x, None if parts is None else self._rows(parts))

    def geglu(self, x: Inputs) -> Tensor:
        """gelu(gate) * up, the two parts of this product."""
        return self.weight.geglu_linear(x)

    def sparse_geglu(self, x: Inputs, cutoff_deviations: float) -> Tensor:
        """As `geglu`, where only the largest gates of each row let anything through."""
        return self.weight.sparse_geglu_linear(x, cutoff_deviations)

    def gated(self, x: Inputs, per_layer_input: Tensor) -> Tensor:
        """gelu(x @ weight^T) * per_layer_input."""
        return self.weight.gated_input_linear(x, per_layer_input)

    def run_experts(self, x: Inputs, weights: Tensor, chosen: Tensor, down: "Linear") -> Tensor:
        """Sum over a row's chosen experts of weight * down(geglu(x))."""
        return self.weight.run_experts(x, weights, chosen, down.weight)

    def fill(self, values: Values, part: int | None = None) -> None:
        """Take what a checkpoint holds of one part, or of all."""
        self.weight.fill(values, self._rows(slice(None) if part is None else slice(part, part + 1)))

    def prepare(self) -> None:
        """Once everything is filled, before the first product."""
        self.weight.prepare(is_gated=self._is_gated)

    def _rows(self, parts: slice) -> slice:
        first, end, _ = parts.indices(len(self._starts) - 1)
        return slice(self._starts[first], self._starts[end])


class Embedding(Linear):
    """A table of rows to look up, of which products can be taken too: a head may be tied to it."""

    def __init__(self, num_ids: int, width: int, scale: float, placement: Placement) -> None:
        super().__init__(width, num_ids, placement)
        # As a tensor of the model's type holds it: scales are rounded before they are applied, and that shows.
        self.scale = torch.tensor(scale, dtype=placement.dtype).item()

    def prepare(self) -> None:
        """Rows stay where they can be looked up."""

    def look_up(self, token_ids: Tensor) -> Tensor:
        return self.weight.embed(token_ids, self.scale)

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
        return self.weight.mix_looked_up_inputs(
            context,
            token_ids,
            norm_weight,
            first_column=first_column,
            token_scale=self.scale,
            context_scale=context_scale,
            eps=eps,
        )
