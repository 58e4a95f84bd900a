"""Shapes, inputs and tolerances for checking the norms around a residual add."""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

EPS = 1e-6

# How far the reference may be from the formula, and the kernel from the reference. Streams here reach about 20.
FLOAT32 = Tolerance(absolute=2e-5, relative=1e-5, why="two float32 means over a row in any order, around a sum")
FLOAT16 = Tolerance(
    absolute=2**-7, relative=2**-9, why="a norm that falls on another float16 moves the sum by one step, 2^-6 at 16"
)
BFLOAT16 = Tolerance(
    absolute=2**-4, relative=2**-6, why="a norm that falls on another bfloat16 moves the sum by one step, 2^-3 at 16"
)
TOLERANCES = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    residual: Tensor
    update: Tensor
    update_weight: Tensor
    next_weight: Tensor
    scale: Tensor  # as a layer's scalar lies in a checkpoint: one element of the stream's type


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    num_rows: int
    width: int

    def inputs(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)

        def normal(deviation: float) -> Tensor:
            shape = (self.num_rows, self.width)
            return (deviation * torch.randn(shape, generator=generator, device=device)).to(dtype)

        def weight() -> Tensor:
            return torch.rand(self.width, generator=generator, device=device) + 0.5

        # Weights first, since they may be read before the launch just before is over.
        return Inputs(
            update_weight=weight(),
            next_weight=weight(),
            scale=torch.tensor([0.71875], dtype=dtype, device=device),
            residual=normal(4.0),
            update=normal(0.3),
        )


SMALL_CASES = (
    Case(num_rows=1, width=96),
    Case(num_rows=5, width=100),
    Case(num_rows=3, width=1300),
)
# Real rows: E4B, 26B-A4B and 31B, one at a time and many.
CASES = (
    Case(num_rows=1, width=2560),
    Case(num_rows=37, width=2560),
    Case(num_rows=37, width=2816),
    Case(num_rows=1, width=5376),
    Case(num_rows=37, width=5376),
    Case(num_rows=8192, width=2560),
    Case(num_rows=300, width=5376),
)
