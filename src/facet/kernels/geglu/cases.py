"""Shapes, inputs and tolerances for checking the gated activation."""

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=2e-6, relative=1e-5, why="a tanh of a cubic, in float32")
BFLOAT16 = Tolerance(absolute=2e-2, relative=2**-6, why="gelu is rounded to bfloat16 before the product is")
SPARSE_BFLOAT16 = Tolerance(
    absolute=0.15,
    relative=2**-6,
    why="the cut, about 3, is rounded to bfloat16 and so off by up to 2^-7, which `up`, as large as 8, multiplies",
)

WIDTHS = (64, 2112, 10240)  # a tiny one; 26B-A4B's dense MLP; E4B
SPARSITIES = (1.6448536269514722,)  # 95% of a normal distribution lies below


def gate_up(width: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return (2 * torch.randn(5, 2 * width, generator=generator, device=device)).to(dtype)
