"""The norm as a module, and the residual stream that passes from norm to norm."""

from typing import NamedTuple

from torch import Tensor, nn

from facet.kernels.arithmetic import Arithmetic
from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.weight import Inputs, Weight


class Residual(NamedTuple):
    """The stream, and the stream as the next layer's first norm leaves it, where the layer before has made that too:
    adding to the stream and normalising the sum is one kernel."""

    stream: Tensor
    normed: Inputs | None


class RMSNorm(nn.Module):
    """A weighted norm over the last axis. `before`: the product that takes the result, if one alone does."""

    def __init__(self, width: int, eps: float, placement: Placement, *, before: Linear | None = None) -> None:
        super().__init__()
        self.weight = placement.norm_weight(width)
        self.eps = eps
        self.arithmetic = placement.arithmetic
        # In a tuple: the product is no part of the norm, and is not registered as one.
        self._before = () if before is None else (before,)

    def forward(self, x: Tensor) -> Inputs:
        return self._computed_by.rms_norm(x, self.weight, self.eps)

    def add(
        self, stream: Tensor, update: Tensor, *, then: "RMSNorm | None" = None, scale: Tensor | None = None
    ) -> Residual:
        """(stream + norm(update)) * scale, and that through the norm `then`. If one product alone takes that, it has to
        be called before the stream is read: it may make both."""
        if then is None:
            return Residual(*self.arithmetic.add_norm(stream, update, self.weight, None, self.eps, scale))
        return Residual(*then._computed_by.add_norm(stream, update, self.weight, then.weight, self.eps, scale))

    def add_before(self, product: Linear, stream: Tensor, update: Tensor) -> Residual:
        """stream + norm(update), and that as the product takes it, which has to be called before the stream is read."""
        new, taken = product.weight.add_norm(stream, update, self.weight, None, self.eps, None)
        return Residual(new, new if taken is None else taken)

    @property
    def _computed_by(self) -> Arithmetic | Weight:
        """Who computes this norm: the weight that takes the result may round it on the way."""
        return self._before[0].weight if self._before else self.arithmetic
