"""Applies the soft cap to the logits. The Triton kernel serves tensors on a GPU, the reference everything else."""

from torch import Tensor

from facet.kernels.logits import reference

__all__ = ["softcap"]


def softcap(logits: Tensor, cap: float | None, out: Tensor | None = None) -> Tensor:
    """cap * tanh(logits / cap), in float32, into `out` if there is one. cap None: the logits, in float32."""
    if logits.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.logits import triton

        return triton.softcap(logits, cap, out)
    return reference.softcap(logits, cap, out)
