"""Matrix products without bias: Triton kernels for few rows, PyTorch's own product otherwise and on a CPU.

A product of few rows is bound by reading the weight. There Triton kernels serve wherever they are faster, with the
activation that follows in the same kernel.

A weight must not be transposed: its rows are contiguous. A row's result may differ in its last bits with the number of
rows that share the call: `choose_config` says where it does not. That of the invariant products never does.
"""

from torch import Tensor
from torch.nn import functional

from facet.kernels.geglu import geglu
from facet.kernels.linear import reference
from facet.kernels.linear.config import Config, choose_config
from facet.kernels.linear.invariant import gated_input_linear as invariant_gated_input_linear
from facet.kernels.linear.invariant import geglu_linear as invariant_geglu_linear
from facet.kernels.linear.invariant import linear as invariant_linear
from facet.kernels.linear.invariant import never_split_sums
from facet.kernels.per_layer_input import gate_per_layer_input

__all__ = [
    "gated_input_linear",
    "geglu_linear",
    "invariant_gated_input_linear",
    "invariant_geglu_linear",
    "invariant_linear",
    "linear",
    "never_split_sums",
]


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, in] @ weight^T, weight [out, in]."""
    config = _choose(x, weight)
    if config is not None:
        # Imported here and below: machines without a GPU need no Triton.
        from facet.kernels.linear import triton

        return triton.linear(x, weight, config)
    return reference.linear(x, weight)


def geglu_linear(x: Tensor, weight: Tensor) -> Tensor:
    """gelu_tanh(gate) * up, where x @ weight^T holds gate, then up: [rows, width] for weight [2 * width, in]."""
    config = _choose(x, weight)
    if config is not None:
        from facet.kernels.linear import triton

        return triton.geglu_linear(x, weight, config)
    return geglu(functional.linear(x, weight))


def gated_input_linear(x: Tensor, weight: Tensor, per_layer_input: Tensor) -> Tensor:
    """gelu_tanh(x @ weight^T) * per_layer_input, the latter [rows, width] for weight [width, in]."""
    config = _choose(x, weight)
    if config is not None:
        from facet.kernels.linear import triton

        return triton.gated_input_linear(x, weight, per_layer_input, config)
    return gate_per_layer_input(functional.linear(x, weight), per_layer_input)


def _choose(x: Tensor, weight: Tensor) -> Config | None:
    # The tiles are cut for 2-byte weights. Float32 is for checking models, not for serving them.
    if not x.is_cuda or x.element_size() != 2:
        return None
    return choose_config(x.shape[0], *weight.shape)
