"""Shapes, inputs and tolerances for checking the norm."""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=1e-6, relative=2e-6, why="a float32 mean over a row, then three products")
BFLOAT16 = Tolerance(absolute=1e-6, relative=2**-8, why="one rounding to bfloat16 at the end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    shape: tuple[int, ...]
    with_weight: bool

    def inputs(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor | None, float]:
        generator = torch.Generator(device).manual_seed(seed)
        # First, since weights may be read before the launch just before is over.
        weight = torch.rand(self.shape[-1], generator=generator, device=device) + 0.5 if self.with_weight else None
        x = 3 * torch.randn(self.shape, generator=generator, device=device).to(dtype)
        return x, weight, 1e-6


# Real rows: the hidden sizes of E4B and 31B, and heads of 256 and 512.
CASES = (
    Case(shape=(3, 2560), with_weight=True),
    Case(shape=(2, 5376), with_weight=True),
    Case(shape=(5, 8, 256), with_weight=True),
    Case(shape=(4, 4, 512), with_weight=False),
)
