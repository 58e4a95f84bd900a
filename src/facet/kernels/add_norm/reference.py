"""The definition of the norms around a residual add, between two matrix products of a decoder layer."""

from torch import Tensor

from facet.kernels.rms_norm.reference import rms_norm


def add_norm(
    residual: Tensor,
    update: Tensor,
    update_weight: Tensor,
    next_weight: Tensor | None,
    eps: float,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Take a normalised update into the stream, and normalise the stream for what reads it next.

    `scale`, one element of the stream's own type, multiplies the new stream: a layer's scalar. None: no factor.
    `next_weight` None: nothing normalised is wanted, and the second result is None.
    """
    new = residual + rms_norm(update, update_weight, eps)
    if scale is not None:
        new = new * scale
    return new, None if next_weight is None else rms_norm(new, next_weight, eps)


def sum_of_norms(a: Tensor, a_weight: Tensor, b: Tensor, b_weight: Tensor, eps: float) -> Tensor:
    """Two branches of a layer, each through its own norm, as one update."""
    total: Tensor = rms_norm(a, a_weight, eps) + rms_norm(b, b_weight, eps)
    return total
