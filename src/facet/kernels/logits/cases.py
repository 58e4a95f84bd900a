"""Inputs and tolerances for checking the soft cap."""

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=5e-6, relative=1e-6, why="a float32 tanh times 30")

CAPS = (30.0, None)


def logits(dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return (40 * torch.randn(3, 1000, generator=generator, device=device)).to(dtype)
