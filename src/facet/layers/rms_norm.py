"""The norm as a module: a float32 weight and an epsilon."""

from torch import Tensor, nn

from facet.layers.placement import Placement
from facet.layers.residual import Residual


class RMSNorm(nn.Module):
    """A weighted norm over the last axis."""

    def __init__(self, width: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.weight = placement.norm_weight(width)
        self.eps = eps
        self.arithmetic = placement.arithmetic

    def forward(self, x: Tensor) -> Tensor:
        return self.arithmetic.rms_norm(x, self.weight, self.eps)

    def add(
        self, stream: Tensor, update: Tensor, *, then: "RMSNorm | None" = None, scale: Tensor | None = None
    ) -> Residual:
        """(stream + norm(update)) * scale, and that through the norm `then`."""
        next_weight = None if then is None else then.weight
        return Residual(*self.arithmetic.add_norm(stream, update, self.weight, next_weight, self.eps, scale))
