"""Shapes, inputs and tolerances for checking routing and experts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=1e-5, relative=1e-4, why="two float32 matrix products, summed over the chosen experts")
BFLOAT16 = Tolerance(absolute=3e-2, relative=2**-5, why="each expert's hidden row and result are rounded to bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertInputs:
    x: Tensor
    router_logits: Tensor
    expert_scale: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    num_rows: int
    hidden: int
    num_experts: int
    num_chosen: int
    width: int

    def inputs(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> ExpertInputs:
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int, deviation: float = 1.0) -> Tensor:
            return (deviation * torch.randn(shape, generator=generator, device=device)).to(dtype)

        return ExpertInputs(
            x=normal(self.num_rows, self.hidden),
            router_logits=normal(self.num_rows, self.num_experts),
            expert_scale=1 + normal(self.num_experts, deviation=0.3),
            gate_up=normal(self.num_experts, 2 * self.width, self.hidden, deviation=self.hidden**-0.5),
            down=normal(self.num_experts, self.hidden, self.width, deviation=self.width**-0.5),
        )


CASES = (
    Case(num_rows=1, hidden=64, num_experts=128, num_chosen=8, width=32),
    Case(num_rows=33, hidden=96, num_experts=16, num_chosen=4, width=24),
    Case(num_rows=5, hidden=128, num_experts=4, num_chosen=4, width=16),
)
