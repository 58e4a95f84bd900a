"""The gated activation of the MLP. The Triton kernel serves tensors on a GPU, the reference everything else."""

from torch import Tensor

from facet.kernels.geglu import invariant, reference

__all__ = ["geglu", "sparse_geglu"]


def geglu(gate_up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up, where the last axis holds gate, then up."""
    if gate_up.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.geglu import triton

        return triton.geglu(gate_up)
    return reference.geglu(gate_up)


def sparse_geglu(gate_up: Tensor, cutoff_deviations: float, *, is_invariant: bool = False) -> Tensor:
    """As `geglu`, after cutting each row of the gate at mean + cutoff_deviations * (population) deviation."""
    if is_invariant:
        return invariant.sparse_geglu(gate_up, cutoff_deviations)
    return reference.sparse_geglu(gate_up, cutoff_deviations)
