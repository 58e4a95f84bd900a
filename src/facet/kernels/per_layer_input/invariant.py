"""The gate of per-layer inputs with bits that do not depend on a number's place in memory."""

from torch import Tensor

from facet.kernels.geglu.invariant import gelu
from facet.kernels.per_layer_input import gate_per_layer_input as usual_gate


def gate_per_layer_input(gate: Tensor, per_layer_input: Tensor) -> Tensor:
    """gelu_tanh(gate) * per_layer_input, both [rows, width]."""
    return usual_gate(gate, per_layer_input) if gate.is_cuda else gelu(gate) * per_layer_input
