"""Shapes and inputs on which per-layer inputs are checked, and how close is close."""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=2e-6, relative=1e-5, why="a norm and a sum in float32")
BFLOAT16 = Tolerance(absolute=3e-2, relative=2**-6, why="four roundings to bfloat16 in a row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    num_rows: int
    num_layers: int
    width: int

    def inputs(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator(device).manual_seed(seed)
        shape = (self.num_rows, self.num_layers, self.width)
        context = torch.randn(shape, generator=generator, device=device).to(dtype)
        token = torch.randn(shape, generator=generator, device=device).to(dtype)
        return context, token, torch.rand(self.width, generator=generator, device=device) + 0.5


CASES = (Case(num_rows=3, num_layers=42, width=256), Case(num_rows=7, num_layers=10, width=16))
