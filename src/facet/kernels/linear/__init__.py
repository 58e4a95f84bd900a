"""Matrix products without bias: kernels in Triton and Gluon for few rows, PyTorch's own product otherwise and on a CPU.

A product of few rows is bound by reading the weight. There these serve wherever they are faster, with the activation
that follows in the same kernel.

A weight must not be transposed: its rows are contiguous. A row's result may differ in its last bits with the number of
rows that share the call: `choose_config` says where it does not. The result of the invariant products never does.
"""

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from facet.kernels.geglu import geglu
from facet.kernels.linear import reference
from facet.kernels.linear.config import Config, choose_config
from facet.kernels.linear.invariant import gated_input_linear as invariant_gated_input_linear
from facet.kernels.linear.invariant import geglu_linear as invariant_geglu_linear
from facet.kernels.linear.invariant import linear as invariant_linear
from facet.kernels.linear.invariant import never_split_sums
from facet.kernels.linear.ring_config import Ring, WarpgroupRing, choose_usual_ring
from facet.kernels.linear.rings import Kernels, kernels_of
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
    chosen = _choose(x, weight)
    return reference.linear(x, weight) if chosen is None else chosen.kernels.linear(x, weight, chosen.config)


def geglu_linear(x: Tensor, weight: Tensor) -> Tensor:
    """gelu_tanh(gate) * up, where x @ weight^T holds gate, then up: [rows, width] for weight [2 * width, in]."""
    chosen = _choose(x, weight)
    if chosen is None:
        return geglu(functional.linear(x, weight))
    return chosen.kernels.geglu_linear(x, weight, chosen.config)


def gated_input_linear(x: Tensor, weight: Tensor, per_layer_input: Tensor) -> Tensor:
    """gelu_tanh(x @ weight^T) * per_layer_input, the latter [rows, width] for weight [width, in]."""
    chosen = _choose(x, weight)
    if chosen is None:
        return gate_per_layer_input(functional.linear(x, weight), per_layer_input)
    return chosen.kernels.gated_input_linear(x, weight, per_layer_input, chosen.config)


class _Chosen(NamedTuple):
    kernels: Kernels
    config: Config | Ring | WarpgroupRing


def _choose(x: Tensor, weight: Tensor) -> _Chosen | None:
    """The kernels that serve, and their configuration. None: PyTorch's product serves."""
    # The tiles are cut for 2-byte weights. Float32 is for checking models, not for serving them.
    if not x.is_cuda or x.element_size() != 2:
        return None
    sizes = (x.shape[0], *weight.shape)
    ring = choose_usual_ring(*sizes)
    rings = kernels_of(ring, x, weight)
    if ring is not None and rings is not None:
        return _Chosen(rings, ring)
    config = choose_config(*sizes)
    if config is None:
        return None
    from facet.kernels.linear import triton  # machines without a GPU need no Triton

    return _Chosen(triton, config)
