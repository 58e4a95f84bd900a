"""The gated MLP."""

import statistics

from torch import Tensor, nn

from facet.kernels.geglu import sparse_geglu
from facet.kernels.linear import geglu_linear
from facet.layers.linear import Linear
from facet.layers.placement import Placement


class MLP(nn.Module):
    """down(gelu(gate(x)) * up(x)); with a sparsity, only the largest gates of each row let anything through."""

    def __init__(self, hidden_size: int, width: int, sparsity: float, placement: Placement) -> None:
        super().__init__()
        self.gate_up = Linear(hidden_size, 2 * width, placement)
        self.down = Linear(width, hidden_size, placement)
        # How many deviations above the mean a normal variable exceeds with probability 1 - sparsity.
        self.cutoff = statistics.NormalDist().inv_cdf(sparsity) if sparsity > 0 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.cutoff is None:
            hidden = geglu_linear(x, self.gate_up.weight, is_invariant=self.gate_up.is_invariant)
        else:
            hidden = sparse_geglu(self.gate_up(x), self.cutoff, is_invariant=self.gate_up.is_invariant)
        out: Tensor = self.down(hidden)
        return out
