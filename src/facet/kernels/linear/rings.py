"""Says where products go through rings: not before a Hopper GPU, nor where Triton has no Gluon."""

from typing import Any, Protocol

from torch import Tensor

from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear.ring_config import Ring, WarpgroupRing


class Kernels(Protocol):
    """The products of one kernel. A `config` is of its own kind."""

    def linear(self, x: Tensor, weight: Tensor, config: Any, /) -> Tensor: ...
    def geglu_linear(self, x: Tensor, weight: Tensor, config: Any, /) -> Tensor: ...
    def gated_input_linear(self, x: Tensor, weight: Tensor, per_layer_input: Tensor, config: Any, /) -> Tensor: ...


def kernels_of(ring: Ring | WarpgroupRing | None, x: Tensor, weight: Tensor) -> Kernels | None:
    """The products through rings, if one was chosen and they can run."""
    if ring is None or not runs_on_hopper(x.device):
        return None
    if isinstance(ring, WarpgroupRing):
        from facet.kernels.linear import warpgroup_ring  # imports Gluon

        return warpgroup_ring if warpgroup_ring.can_run(x, weight) else None
    from facet.kernels.linear import ring as kernels

    return kernels if kernels.can_run(x, weight) else None
