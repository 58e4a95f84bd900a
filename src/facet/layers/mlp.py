"""The gated MLP."""

import statistics

from torch import Tensor, nn

from facet.layers.linear import Linear
from facet.layers.placement import Placement


class MLP(nn.Module):
    """down(gelu(gate(x)) * up(x)); with a sparsity, only the largest gates of each row let anything through."""

    def __init__(self, hidden_size: int, width: int, sparsity: float, placement: Placement) -> None:
        super().__init__()
        self.gate_up = Linear(hidden_size, 2 * width, placement)
        self.down = Linear(width, hidden_size, placement)
        self.arithmetic = placement.arithmetic
        # How many deviations above the mean a normal variable exceeds with probability 1 - sparsity.
        self.cutoff = statistics.NormalDist().inv_cdf(sparsity) if sparsity > 0 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.cutoff is None:
            hidden = self.arithmetic.geglu_linear(x, self.gate_up.weight)
        else:
            hidden = self.arithmetic.sparse_geglu(self.gate_up(x), self.cutoff)
        out: Tensor = self.down(hidden)
        return out
