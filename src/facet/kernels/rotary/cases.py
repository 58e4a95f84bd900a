"""Shapes, inputs and tolerances for checking the rotation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

# Angles grow with the position: at 131,072 a float32 angle is only good to 2^-7 of a radian, for everybody.
FLOAT32 = Tolerance(absolute=2e-6, relative=2e-6, why="two float32 products and a sum of values near 1")
BFLOAT16 = Tolerance(absolute=0.05, relative=2**-7, why="cos, sin and both products are rounded to bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    num_heads: int
    head_dim: int
    num_pairs: int
    theta: float
    factor: float
    positions: tuple[int, ...]

    def heads(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Tensor:
        generator = torch.Generator(device).manual_seed(seed)
        shape = (len(self.positions), self.num_heads, self.head_dim)
        return torch.randn(shape, generator=generator, device=device).to(dtype)


CASES = (
    Case(num_heads=8, head_dim=256, num_pairs=128, theta=1e4, factor=1.0, positions=(0, 1, 511, 4000)),
    Case(num_heads=4, head_dim=512, num_pairs=64, theta=1e6, factor=1.0, positions=(0, 3, 4095)),
    Case(num_heads=2, head_dim=128, num_pairs=64, theta=1e6, factor=8.0, positions=(7, 2048)),
)
