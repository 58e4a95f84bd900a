"""The gated activation with bits that do not depend on a number's place in memory. On a CPU, PyTorch's GELU uses one
approximation for vectors and another for the rest at the end of a stretch of memory. Here it is built from operations
that are correctly rounded, and from tanh, which is the same everywhere. On a GPU every number is computed alike; only
the sparse version sums over a row, with a kernel that always does it in one order."""

import torch
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU, in float32 inside."""
    wide = x.float()
    # No fused multiply-adds: each operation is one of PyTorch's, rounded by itself.
    angle = (wide + wide * wide * wide * 0.044715) * (2 / torch.pi) ** 0.5
    return (wide * 0.5 * (torch.tanh(angle) + 1.0)).to(x.dtype)


def geglu(gate_up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up, where the last axis holds gate, then up."""
    if gate_up.is_cuda:
        # Imported here and below: machines without a GPU need no Triton.
        from facet.kernels.geglu import triton

        return triton.geglu(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu(gate) * up


def sparse_geglu(gate_up: Tensor, cutoff_deviations: float) -> Tensor:
    """Like `geglu`, after cutting each row of the gate at mean + cutoff_deviations * (population) deviation."""
    if gate_up.is_cuda:
        from facet.kernels.geglu.triton_sparse import sparse_geglu as sparse_kernel

        return sparse_kernel(gate_up, cutoff_deviations)
    gate, up = gate_up.chunk(2, dim=-1)
    deviation = torch.std(gate, dim=-1, keepdim=True, correction=0)
    cut = gate.mean(dim=-1, keepdim=True) + deviation * cutoff_deviations
    return gelu(torch.relu(gate - cut)) * up
