"""The definition of the gated activation, with and without Gemma 3n's sparsity."""

import torch
from torch import Tensor
from torch.nn import functional


def geglu(gate_up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up, where the last axis holds gate, then up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * up


def sparse_geglu(gate_up: Tensor, cutoff_deviations: float) -> Tensor:
    """Like `geglu`, after cutting each row of the gate at mean + cutoff_deviations * (population) deviation.

    What lies below the cut becomes zero; what lies above is lowered by it.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    deviation = torch.std(gate, dim=-1, keepdim=True, correction=0)
    cut = gate.mean(dim=-1, keepdim=True) + deviation * cutoff_deviations
    return functional.gelu(torch.relu(gate - cut), approximate="tanh") * up
