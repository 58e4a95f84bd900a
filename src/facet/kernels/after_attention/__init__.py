"""All that a layer computes after attention, for a single row on a Hopper GPU: in one launch (`kernel.py`)."""

from torch import Tensor

from facet.kernels.after_attention.plan import Sizes, can_divide, can_hold_all
from facet.kernels.after_attention.weights import Weights
from facet.kernels.hopper import runs_on_hopper

__all__ = ["Weights", "after_attention", "can_run"]


def can_run(attended: Tensor, weights: Weights) -> bool:
    """Whether one launch serves. No bit depends on it: elsewhere the products and norms follow each other, in chains
    of sums."""
    return (
        attended.shape[0] == 1
        and attended.is_cuda
        and attended.element_size() == 2
        and runs_on_hopper(attended.device)
        and can_hold_all(attended.device)
        and can_divide(Sizes.of(weights))
    )


def after_attention(
    attended: Tensor, stream: Tensor, per_layer_input: Tensor | None, weights: Weights, next_norm: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The stream behind the layer, [1, hidden], and that through the next layer's first norm.

    `attended` is [1, queries], `per_layer_input` [1, width].
    """
    from facet.kernels.after_attention import launch  # Triton may have no Gluon

    return launch.run(attended.contiguous(), stream.contiguous(), per_layer_input, weights, next_norm)
