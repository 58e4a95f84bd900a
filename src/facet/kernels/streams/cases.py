"""Inputs and tolerances for checking the sums over streams."""

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=1e-5, relative=1e-5, why="four float32 products of numbers near 3, in another order")
HALF = Tolerance(absolute=2**-5, relative=2**-7, why="the sum rounds to 8 bits once or, where PyTorch sums, more often")
TOLERANCES = {torch.float32: FLOAT32, torch.float16: HALF, torch.bfloat16: HALF}

NUM_STREAMS = 4
WIDTHS = (32, 100, 2048)  # tiny ones; Gemma 3n


def inputs(num_rows: int, width: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor]:
    """Coefficients between -1 and 1, and streams."""
    generator = torch.Generator(device).manual_seed(seed)
    shape = (num_rows, NUM_STREAMS, NUM_STREAMS)
    coefficients = 2 * torch.rand(shape, generator=generator, device=device) - 1
    streams = 3 * torch.randn(NUM_STREAMS, num_rows, width, generator=generator, device=device)
    return coefficients.to(dtype), streams.to(dtype)
