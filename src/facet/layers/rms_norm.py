"""The norm as a module: a float32 weight and an epsilon."""

from torch import Tensor, nn

from facet.kernels.rms_norm import rms_norm
from facet.layers.placement import Placement


class RMSNorm(nn.Module):
    """A weighted norm over the last axis."""

    def __init__(self, width: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.weight = placement.norm_weight(width)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
