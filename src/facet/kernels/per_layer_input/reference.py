"""The definition of per-layer inputs."""

from torch import Tensor
from torch.nn import functional

from facet.kernels.rms_norm import rms_norm


def mix_per_layer_inputs(
    context: Tensor, token: Tensor, norm_weight: Tensor, *, context_scale: float, eps: float
) -> Tensor:
    """(rms(context * context_scale) + token) / sqrt(2), all [rows, layers, width].

    `context` is projected from the decoder's input, `token` looked up (and already scaled) by token id.
    """
    mixed: Tensor = (rms_norm(context * context_scale, norm_weight, eps) + token) * 0.5**0.5
    return mixed


def gate_per_layer_input(gate: Tensor, per_layer_input: Tensor) -> Tensor:
    """gelu_tanh(gate) * per_layer_input, both [rows, width]."""
    return functional.gelu(gate, approximate="tanh") * per_layer_input
