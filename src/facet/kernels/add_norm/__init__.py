"""The norms around a residual add in one pass. The Triton kernels serve tensors on a GPU, the reference all others."""

from torch import Tensor

from facet.kernels.add_norm import reference

__all__ = ["add_norm", "sum_of_norms"]


def add_norm(
    residual: Tensor,
    update: Tensor,
    update_weight: Tensor,
    next_weight: Tensor | None,
    eps: float,
    scale: Tensor | None = None,
    *,
    is_invariant: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """(new, norm(new)) with new = (residual + norm(update)) * scale, all [rows, hidden].

    With `is_invariant`, here and below, a row's bits do not depend on how many rows there are.
    """
    if residual.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.add_norm import triton

        return triton.add_norm(residual, update, update_weight, next_weight, eps, scale, is_invariant=is_invariant)
    return reference.add_norm(residual, update, update_weight, next_weight, eps, scale)


def sum_of_norms(
    a: Tensor, a_weight: Tensor, b: Tensor, b_weight: Tensor, eps: float, *, is_invariant: bool = False
) -> Tensor:
    """norm(a) + norm(b), both [rows, hidden]."""
    if a.is_cuda:
        from facet.kernels.add_norm import triton

        return triton.sum_of_norms(a, a_weight, b, b_weight, eps, is_invariant=is_invariant)
    return reference.sum_of_norms(a, a_weight, b, b_weight, eps)
