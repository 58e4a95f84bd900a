"""Shapes, inputs and tolerances for checking per-layer inputs."""

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
        # First, since weights may be read before the launch just before is over.
        weight = torch.rand(self.width, generator=generator, device=device) + 0.5
        context = torch.randn(shape, generator=generator, device=device).to(dtype)
        token = torch.randn(shape, generator=generator, device=device).to(dtype)
        return context, token, weight


CASES = (Case(num_rows=3, num_layers=42, width=256), Case(num_rows=7, num_layers=10, width=16))


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpCase:
    """Layers `first_layer` to `first_layer + num_layers` of a table that has more, before and after them."""

    num_rows: int
    num_layers: int
    width: int
    first_layer: int
    vocab_size: int

    def inputs(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Context, ids (the first row's is past the table, the last row's its last), table and norm weight."""
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=dtype, device=device)

        token_ids = torch.randint(self.vocab_size, (self.num_rows,), generator=generator, device=device)
        token_ids[-1] = self.vocab_size - 1
        token_ids[0] = self.vocab_size + 3
        table = normal(self.vocab_size, (self.first_layer + self.num_layers + 1) * self.width).div_(16)
        weight = torch.rand(self.width, generator=generator, device=device) + 0.5
        return normal(self.num_rows, self.num_layers, self.width), token_ids, table, weight


SMALL_LOOK_UPS = (
    LookUpCase(num_rows=1, num_layers=3, width=16, first_layer=0, vocab_size=9),
    LookUpCase(num_rows=5, num_layers=3, width=20, first_layer=2, vocab_size=9),
)
# E4B: the layers below the shared ones for many rows, those above for a few.
LOOK_UPS = (
    LookUpCase(num_rows=300, num_layers=24, width=256, first_layer=0, vocab_size=262_144),
    LookUpCase(num_rows=3, num_layers=18, width=256, first_layer=24, vocab_size=262_144),
)
