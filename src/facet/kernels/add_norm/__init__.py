"""Adds a normalised update to the residual stream and normalises the result, in one pass. Triton on a GPU, elsewhere
the reference.

In the invariant versions a row's bits do not depend on the number of rows; in the reference they never do.
"""

from torch import Tensor

from facet.kernels.add_norm import reference
from facet.kernels.rounded_rows import RoundedRows, RowCodes

__all__ = [
    "add_norm",
    "invariant_add_norm",
    "invariant_rounded_add_norm",
    "invariant_sum_of_norms",
    "rounded_add_norm",
    "sum_of_norms",
]


def add_norm(
    residual: Tensor,
    update: Tensor,
    update_weight: Tensor,
    next_weight: Tensor | None,
    eps: float,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(new, norm(new)) with new = (residual + norm(update)) * scale, all [rows, hidden]."""
    if residual.is_cuda:
        # Imported here and below: machines without a GPU need no Triton.
        from facet.kernels.add_norm import triton

        return triton.add_norm(residual, update, update_weight, next_weight, eps, scale)
    return reference.add_norm(residual, update, update_weight, next_weight, eps, scale)


def invariant_add_norm(
    residual: Tensor,
    update: Tensor,
    update_weight: Tensor,
    next_weight: Tensor | None,
    eps: float,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Like `add_norm`, but a row's bits never depend on the number of rows."""
    if residual.is_cuda:
        from facet.kernels.add_norm import triton
        from facet.kernels.rms_norm.triton import tile_of_any_rows

        tile = tile_of_any_rows(residual)
        return triton.add_norm(residual, update, update_weight, next_weight, eps, scale, tile)
    return reference.add_norm(residual, update, update_weight, next_weight, eps, scale)


def rounded_add_norm(
    residual: Tensor,
    update: Tensor,
    update_weight: Tensor,
    next_weight: Tensor,
    eps: float,
    scale: Tensor | None,
    codes: RowCodes,
) -> tuple[Tensor, RoundedRows]:
    """Like `add_norm`, on a GPU, with the second result rounded to eight bits."""
    from facet.kernels.add_norm import triton, triton_rounded
    from facet.kernels.rms_norm.triton import FEW_ROWS

    if residual.shape[0] > FEW_ROWS:
        return triton_rounded.rounded_add_norm(residual, update, update_weight, next_weight, eps, scale, codes)
    return triton.rounded_add_norm(residual, update, update_weight, next_weight, eps, scale, codes)


def invariant_rounded_add_norm(
    residual: Tensor,
    update: Tensor,
    update_weight: Tensor,
    next_weight: Tensor,
    eps: float,
    scale: Tensor | None,
    codes: RowCodes,
) -> tuple[Tensor, RoundedRows]:
    """Like `rounded_add_norm`, but a row's bits never depend on the number of rows."""
    from facet.kernels.add_norm import triton
    from facet.kernels.rms_norm.triton import tile_of_any_rows

    tile = tile_of_any_rows(residual)
    return triton.rounded_add_norm(residual, update, update_weight, next_weight, eps, scale, codes, tile)


def sum_of_norms(a: Tensor, a_weight: Tensor, b: Tensor, b_weight: Tensor, eps: float) -> Tensor:
    """norm(a) + norm(b), both [rows, hidden]."""
    if a.is_cuda:
        from facet.kernels.add_norm import triton

        return triton.sum_of_norms(a, a_weight, b, b_weight, eps)
    return reference.sum_of_norms(a, a_weight, b, b_weight, eps)


def invariant_sum_of_norms(a: Tensor, a_weight: Tensor, b: Tensor, b_weight: Tensor, eps: float) -> Tensor:
    """Like `sum_of_norms`, but a row's bits never depend on the number of rows."""
    if a.is_cuda:
        from facet.kernels.add_norm import triton
        from facet.kernels.rms_norm.triton import tile_of_any_rows

        return triton.sum_of_norms(a, a_weight, b, b_weight, eps, tile_of_any_rows(a))
    return reference.sum_of_norms(a, a_weight, b, b_weight, eps)
