"""Computes log(sum(exp(logits))) over the vocabulary, which log-probabilities need.

A row's bits never depend on the other rows, so that log-probabilities can be compared. The Triton kernel serves tensors
on a GPU, the reference everything else.
"""

from torch import Tensor

from facet.kernels.log_sum_exp import reference

__all__ = ["log_sum_exp"]


def log_sum_exp(logits: Tensor) -> Tensor:
    """[rows, vocab] -> [rows, 1], both float32."""
    if logits.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.log_sum_exp import triton

        return triton.log_sum_exp(logits)
    return reference.log_sum_exp(logits)
