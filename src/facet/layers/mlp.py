"""The gated MLP."""

import statistics

from torch import Tensor, nn

from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.weight import Inputs


class MLP(nn.Module):
    """down(gelu(gate(x)) * up(x)); with a sparsity, only the largest gates of each row let anything through.

    `width` is what this rank has of it."""

    def __init__(self, hidden_size: int, width: int, sparsity: float, placement: Placement) -> None:
        super().__init__()
        self.gate_up = Linear(hidden_size, (width, width), placement, is_gated=sparsity == 0)
        self.down = Linear(width, hidden_size, placement, summed_over=placement.group)
        self._group = placement.group
        # How many deviations above the mean a normal variable exceeds with probability 1 - sparsity.
        self.cutoff = statistics.NormalDist().inv_cdf(sparsity) if sparsity > 0 else None

    def forward(self, x: Inputs) -> Tensor:
        if self.cutoff is None:
            hidden = self.gate_up.geglu(x, before=self.down)
        else:
            hidden = self.gate_up.sparse_geglu(x, self.cutoff, self._group)
        out: Tensor = self.down(hidden)
        return out
