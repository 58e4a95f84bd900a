"""Sizes and inputs for checking sums over ranks, which have no tolerance: the order of additions is fixed."""

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# A value; the shares of Gemma 3n's gates; a row of E4B and of 31B; several rows; and one value beyond full programs.
SHAPES = ((1,), (3, 1), (1, 2560), (1, 5376), (3, 2560), (4097,))


def parts(num_ranks: int, shape: tuple[int, ...], dtype: torch.dtype, *, seed: int, device: str = "cpu") -> Tensor:
    """[ranks, *shape]. Of very different sizes, so that another order of additions has another result."""
    generator = torch.Generator(device).manual_seed(seed)
    values = torch.randn(num_ranks, *shape, generator=generator, device=device)
    sizes = torch.randint(-8, 9, (num_ranks, *shape), generator=generator, device=device)
    return (values * 2.0**sizes).to(dtype)
