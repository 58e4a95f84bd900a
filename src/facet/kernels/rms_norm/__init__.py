"""x / rms(x) * weight, over the last axis. The Triton kernel serves tensors on a GPU, the reference everything else."""

from torch import Tensor

from facet.kernels.rms_norm import reference

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, *, is_invariant: bool = False) -> Tensor:
    """x * (mean(x^2) + eps)^(-1/2) * weight over the last axis, in float32, cast back at the end.

    With `is_invariant`, a row's bits do not depend on how many rows there are; those of the reference never do.
    """
    if x.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.rms_norm import triton

        return triton.rms_norm(x, weight, eps, is_invariant=is_invariant)
    return reference.rms_norm(x, weight, eps)
