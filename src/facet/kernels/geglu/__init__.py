"""The gated activation of the MLP. The Triton kernels serve tensors on a GPU, the reference everything else."""

from torch import Tensor

from facet.kernels.geglu import reference
from facet.kernels.geglu.invariant import geglu as invariant_geglu
from facet.kernels.geglu.invariant import sparse_geglu as invariant_sparse_geglu

__all__ = ["geglu", "invariant_geglu", "invariant_sparse_geglu", "sparse_geglu"]


def geglu(gate_up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up, where the last axis holds gate, then up."""
    if gate_up.is_cuda:
        # Imported here and below: machines without a GPU need no Triton.
        from facet.kernels.geglu import triton

        return triton.geglu(gate_up)
    return reference.geglu(gate_up)


def sparse_geglu(gate_up: Tensor, cutoff_deviations: float) -> Tensor:
    """Like `geglu`, after cutting each row of the gate at mean + cutoff_deviations * (population) deviation."""
    if gate_up.is_cuda:
        from facet.kernels.geglu import triton_sparse

        return triton_sparse.sparse_geglu(gate_up, cutoff_deviations)
    return reference.sparse_geglu(gate_up, cutoff_deviations)
