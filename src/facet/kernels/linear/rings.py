"""Says where products go through rings: not before a Hopper GPU, nor where Triton has no Gluon."""

from typing import Any, Protocol

from torch import Tensor

from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear.config import Ring


class Kernels(Protocol):
    """The products of one kernel. A `config` is of its own kind."""

    def linear(self, x: Tensor, weight: Tensor, config: Any, /) -> Tensor: ...
    def geglu_linear(self, x: Tensor, weight: Tensor, config: Any, /) -> Tensor: ...
    def gated_input_linear(self, x: Tensor, weight: Tensor, per_layer_input: Tensor, config: Any, /) -> Tensor: ...


def kernels_of(ring: Ring | None, x: Tensor, weight: Tensor) -> Kernels | None:
    """The products through rings, if one was chosen and they can run."""
    if ring is None or not runs_on_hopper(x.device):
        return None
    from facet.kernels.linear import ring as kernels  # imports Gluon

    return kernels if kernels.can_run(x, weight) else None
