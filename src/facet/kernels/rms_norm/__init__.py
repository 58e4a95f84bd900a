"""The norm x / rms(x) * weight over the last axis. The Triton kernel serves tensors on a GPU, the reference everything
else."""

from torch import Tensor

from facet.kernels.rms_norm import reference
from facet.kernels.rounded_rows import RoundedRows, RowCodes

__all__ = [
    "invariant_rms_norm",
    "invariant_rounded_rms_norm",
    "invariant_router_norms",
    "rms_norm",
    "rounded_rms_norm",
    "router_norms",
]


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x * (mean(x^2) + eps)^(-1/2) * weight over the last axis, in float32, cast back at the end."""
    if x.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.rms_norm import triton

        return triton.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def invariant_rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Like `rms_norm`, but a row's bits do not depend on how many rows there are; those of the reference never do."""
    if x.is_cuda:
        from facet.kernels.rms_norm import triton

        return triton.rms_norm(x, weight, eps, triton.tile_of_any_rows(x))
    return reference.rms_norm(x, weight, eps)


def router_norms(
    x: Tensor, scale: Tensor, factor: float, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor | None]:
    """What a router takes, the scale-free norm times `scale` times `factor`, cast back after each, and the norm with
    `weight`: what experts take. None: somebody else makes that."""
    if x.is_cuda:
        from facet.kernels.rms_norm import triton

        return triton.router_norms(x, scale, factor, weight, eps)
    return reference.router_norms(x, scale, factor, weight, eps)


def invariant_router_norms(
    x: Tensor, scale: Tensor, factor: float, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor | None]:
    """Like `router_norms`, but a row's bits do not depend on how many rows there are."""
    if x.is_cuda:
        from facet.kernels.rms_norm import triton

        return triton.router_norms(x, scale, factor, weight, eps, triton.tile_of_any_rows(x))
    return reference.router_norms(x, scale, factor, weight, eps)


def rounded_rms_norm(x: Tensor, weight: Tensor, eps: float, codes: RowCodes) -> RoundedRows:
    """Like `rms_norm`, on a GPU, with a result rounded to eight bits."""
    from facet.kernels.rms_norm import triton

    return triton.rounded_rms_norm(x, weight, eps, codes)


def invariant_rounded_rms_norm(x: Tensor, weight: Tensor, eps: float, codes: RowCodes) -> RoundedRows:
    """Like `rounded_rms_norm`, but a row's bits do not depend on how many rows there are."""
    from facet.kernels.rms_norm import triton

    return triton.rounded_rms_norm(x, weight, eps, codes, triton.tile_of_any_rows(x))
