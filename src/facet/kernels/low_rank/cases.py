"""Shapes, inputs and tolerances for checking low-rank additions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.low_rank.matrices import LowRankMatrices
from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=1e-5, relative=1e-5, why="sums of hundreds of products in another order")
HALF = Tolerance(
    absolute=2e-2, relative=2**-7, why="what lies between the two products is rounded to the type of activations"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    num_inputs: int
    parts: tuple[int, ...]  # outputs of each
    rank: int
    num_adapters: int = 3

    @property
    def starts(self) -> tuple[int, ...]:
        starts = [0]
        for size in self.parts:
            starts.append(starts[-1] + size)
        return tuple(starts)

    def matrices(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> LowRankMatrices:
        generator = torch.Generator(device).manual_seed(seed)

        def draw(*shape: int, scale: float) -> Tensor:
            return (torch.randn(shape, generator=generator, device=device) * scale).to(dtype)

        count = self.num_adapters
        return LowRankMatrices(
            down=draw(count, len(self.parts), self.rank, self.num_inputs, scale=self.num_inputs**-0.5),
            up=draw(count, self.starts[-1], self.rank, scale=self.rank**-0.5),
            starts=self.starts,
        )

    def rows(self, num_rows: int, dtype: torch.dtype, device: str = "cpu", seed: int = 1) -> tuple[Tensor, Tensor]:
        """x, and a product that is there already."""
        generator = torch.Generator(device).manual_seed(seed)
        x = torch.randn(num_rows, self.num_inputs, generator=generator, device=device).to(dtype)
        return x, torch.randn(num_rows, self.starts[-1], generator=generator, device=device).to(dtype)


CASES = (
    Case(num_inputs=40, parts=(24, 8, 8), rank=16),  # tiny, and in no tile whole
    Case(num_inputs=640, parts=(96, 96), rank=32),  # more than a slice of inputs
    Case(num_inputs=1100, parts=(200,), rank=128, num_adapters=2),
)
E4B_GATE_UP = Case(num_inputs=2560, parts=(10_240, 10_240), rank=16)
E4B_DOWN = Case(num_inputs=10_240, parts=(2560,), rank=16)
E4B_QKV = Case(num_inputs=2560, parts=(2048, 512, 512), rank=64)
