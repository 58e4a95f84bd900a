"""How large the rows of a tensor are. The Triton kernel serves tensors on a GPU, the reference everything else."""

from torch import Tensor

from facet.kernels.mean_square import reference

__all__ = ["mean_square"]


def mean_square(x: Tensor, *, is_invariant: bool = False) -> Tensor:
    """The mean of x^2 over the last axis, which stays, with one element.

    With `is_invariant`, a row's bits do not depend on how many rows there are; those of the reference depend on it on a
    GPU alone, where PyTorch shares a sum out by the number of sums.
    """
    if is_invariant and x.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.mean_square import triton

        return triton.mean_square(x)
    return reference.mean_square(x)
