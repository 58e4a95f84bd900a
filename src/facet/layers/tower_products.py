"""Products and norms that only towers have: with biases, and with bounds on what goes in and out."""

from torch import Tensor, nn
from torch.nn import functional

from facet.layers.linear import Linear
from facet.layers.placement import Placement


class BiasedLinear(nn.Module):
    """x @ weight^T + bias."""

    def __init__(self, num_inputs: int, num_outputs: int, placement: Placement) -> None:
        super().__init__()
        self.product = Linear(num_inputs, num_outputs, placement)
        self.bias = placement.values(num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.product(x)
        return out + self.bias


class BoundedLinear(nn.Module):
    """x @ weight^T; where it is clipped, of x within bounds, and the result within others."""

    def __init__(self, num_inputs: int, num_outputs: int, placement: Placement, *, is_clipped: bool) -> None:
        super().__init__()
        self.product = Linear(num_inputs, num_outputs, placement)
        self.is_clipped = is_clipped
        if is_clipped:
            self.input_min, self.input_max = placement.values(), placement.values()
            self.output_min, self.output_max = placement.values(), placement.values()

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_clipped:
            out: Tensor = self.product(x)
            return out
        product: Tensor = self.product(x.clamp(self.input_min, self.input_max))
        return product.clamp(self.output_min, self.output_max)


class LayerNorm(nn.Module):
    """(x - mean) / deviation * weight + bias over the last axis, in float32, cast back at the end."""

    def __init__(self, width: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.weight = placement.norm_weight(width)
        self.bias = placement.norm_weight(width)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps).to(x.dtype)
