"""Computes the mean square of each row of a tensor.

On a GPU, PyTorch splits a sum in a way that depends on the number of rows, so the invariant version there is a Triton
kernel.
"""

from torch import Tensor

from facet.kernels.mean_square.reference import mean_square

__all__ = ["invariant_mean_square", "mean_square"]


def invariant_mean_square(x: Tensor) -> Tensor:
    """Like `mean_square`, but a row's bits do not depend on how many rows there are."""
    if x.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.mean_square import triton

        return triton.mean_square(x)
    return mean_square(x)
