"""The gated activation of the MLP. The Triton kernel serves tensors on a GPU, the reference everything else."""

from torch import Tensor

from facet.kernels.geglu import reference
from facet.kernels.geglu.invariant import geglu as invariant_geglu
from facet.kernels.geglu.invariant import sparse_geglu as invariant_sparse_geglu
from facet.kernels.geglu.reference import sparse_geglu

__all__ = ["geglu", "invariant_geglu", "invariant_sparse_geglu", "sparse_geglu"]


def geglu(gate_up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up, where the last axis holds gate, then up."""
    if gate_up.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.geglu import triton

        return triton.geglu(gate_up)
    return reference.geglu(gate_up)
