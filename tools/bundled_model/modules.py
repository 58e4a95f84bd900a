"""The parts that the trainable decoder and tower have in common: products, norms and feed-forward networks.

Parameters are float32 and are rounded to the type of what they are applied to, where they are applied.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear


class Matrix(nn.Module):
    """A product with [outputs, inputs]."""

    def __init__(self, num_outputs: int, num_inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return (rms_norm(x, self.eps) * self.weight.to(x.dtype).float()).to(x.dtype)


class MLP(nn.Module):
    """`product` makes the three matrices: towers store theirs under another name."""

    def __init__(self, hidden: int, width: int, product: type[nn.Module] = Matrix) -> None:
        super().__init__()
        self.gate_proj = product(width, hidden)
        self.up_proj = product(width, hidden)
        self.down_proj = product(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))
        return out


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """Without a weight, and still in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
