"""The definition of matrix products without bias, and of the two activations that follow one directly."""

from torch import Tensor
from torch.nn import functional

from facet.kernels.geglu.reference import geglu
from facet.kernels.per_layer_input.reference import gate_per_layer_input


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, in] @ weight^T, weight [out, in]."""
    return functional.linear(x, weight)


def geglu_linear(x: Tensor, weight: Tensor) -> Tensor:
    """gelu_tanh(gate) * up, where x @ weight^T holds gate, then up: [rows, width] for weight [2 * width, in]."""
    return geglu(functional.linear(x, weight))


def gated_input_linear(x: Tensor, weight: Tensor, per_layer_input: Tensor) -> Tensor:
    """gelu_tanh(x @ weight^T) * per_layer_input, the latter [rows, width] for weight [width, in]."""
    return gate_per_layer_input(functional.linear(x, weight), per_layer_input)
