"""Shapes, inputs and tolerances for checking the scaled embedding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

EXACT = Tolerance(absolute=0.0, relative=0.0, why="one float32 product and one rounding, the same everywhere")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    num_rows: int
    vocab_size: int
    width: int

    def inputs(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor, float]:
        """Ids, among them the first and the last of the vocabulary; a table whose rows do not touch; a scale."""
        generator = torch.Generator(device).manual_seed(seed)
        token_ids = torch.randint(self.vocab_size, (self.num_rows,), generator=generator, device=device)
        token_ids[0], token_ids[-1] = 0, self.vocab_size - 1
        table = torch.randn(self.vocab_size, self.width + 16, generator=generator, device=device).to(dtype)
        scale = torch.tensor(self.width**0.5, dtype=dtype).item()
        return token_ids, table[:, : self.width], scale


SMALL_CASES = (
    Case(num_rows=1, vocab_size=7, width=96),
    Case(num_rows=13, vocab_size=50, width=100),
)
# E4B's and 31B's rows, E4B's vocabulary.
CASES = (
    Case(num_rows=1, vocab_size=262_144, width=2560),
    Case(num_rows=300, vocab_size=262_144, width=2560),
    Case(num_rows=300, vocab_size=1000, width=5376),
)
