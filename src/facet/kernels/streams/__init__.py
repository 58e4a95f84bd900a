"""What a layer does to the parallel streams of Gemma 3n. Sums over them have a handful of terms each. On a GPU
`triton.py` has most of them, with what comes before and after, in one launch."""

from typing import Protocol

from torch import Tensor

from facet.kernels.streams.invariant import mean_of_streams as invariant_mean_of_streams
from facet.kernels.streams.invariant import mix_streams as invariant_mix_streams
from facet.kernels.streams.reference import mean_of_streams, mix_streams

__all__ = [
    "Kernels",
    "choose_kernels",
    "invariant_mean_of_streams",
    "invariant_mix_streams",
    "mean_of_streams",
    "mix_streams",
]


class Kernels(Protocol):
    """Several operations in one launch. What each means is said in `triton.py`."""

    def predict(
        self, streams: Tensor, router_norm: Tensor, router: Tensor, prediction: Tensor, next_norm: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]: ...

    def join_paths(
        self,
        active: Tensor,
        attended: Tensor,
        attended_norm: Tensor,
        h: Tensor,
        detour: Tensor,
        detour_norm: Tensor,
        next_norm: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor | None]: ...

    def correct(
        self,
        predicted: Tensor,
        active: Tensor,
        router_norm: Tensor,
        router: Tensor,
        correction: Tensor,
        output_scale: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]: ...

    def inject(self, streams: Tensor, update: Tensor, norm: Tensor, eps: float) -> None: ...


def choose_kernels(x: Tensor) -> Kernels | None:
    """The kernels for streams on x's device. None: the layer's own operations are all there is."""
    if not x.is_cuda:
        return None
    # Imported here: machines without a GPU need no Triton.
    from facet.kernels.streams import triton

    return triton
