"""The definition of the mean square."""

from torch import Tensor


def mean_square(x: Tensor) -> Tensor:
    """The mean of x^2 over the last axis, which stays, with one element."""
    return x.square().mean(dim=-1, keepdim=True)
