"""Shapes, inputs and tolerances for checking the mean square."""

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=0.0, relative=1e-5, why="a float32 sum of up to 2560 squares in another order")
HALF = Tolerance(
    absolute=0.0, relative=2**-6, why="PyTorch rounds every square to the activations' type, which we do not"
)
TOLERANCES = {torch.float32: FLOAT32, torch.float16: HALF, torch.bfloat16: HALF}

WIDTHS = (32, 100, 2048, 2560)  # tiny ones; Gemma 3n E4B and beyond


def rows(width: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return (3 * torch.randn(37, width, generator=generator, device=device)).to(dtype)
