"""The definition of the norm that every Gemma uses."""

from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x * (mean(x^2) + eps)^(-1/2) * weight over the last axis, in float32, cast back at the end.

    `weight` is float32 and multiplies as it is: the "+ 1" of Gemma 3 is added once, when a checkpoint is loaded.
    None: the scale-free norm.
    """
    wide = x.float()
    normed = wide * wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    if weight is not None:
        normed.mul_(weight)
    return normed.to(x.dtype)


def router_norms(
    x: Tensor, scale: Tensor, factor: float, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor | None]:
    """What a router takes, the scale-free norm times `scale` times `factor`, cast back after each, and the norm with
    `weight`."""
    return rms_norm(x, None, eps) * scale * factor, None if weight is None else rms_norm(x, weight, eps)
