"""Shapes, inputs and tolerances for checking the logarithm of a sum."""

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=1e-5, relative=1e-6, why="a float32 sum over the vocabulary in another order")

VOCAB_SIZES = (100, 4096, 9000)
LARGE_VOCAB_SIZES = (262144, 262208)


def logits(vocab_size: int, device: str = "cpu", seed: int = 0) -> Tensor:
    """Logits as a softcap of 30 leaves them; one row's best token has nearly everything, one row is flat."""
    generator = torch.Generator(device).manual_seed(seed)
    rows = 5 * torch.randn(5, vocab_size, generator=generator, device=device)
    rows[1, vocab_size // 2] = 30.0
    rows[2] = -2.5
    return rows
