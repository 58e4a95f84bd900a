"""Says where a product makes the row that it takes, so that no kernel has to before it: on Hopper GPUs, where there is
one row, whose steps wait from kernel to kernel."""

import torch
from torch import Tensor

from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear.ring_config import WarpgroupRing, normed_ring_of
from facet.kernels.linear.row_to_make import RowToMake


def row_left_to_product(
    weight: Tensor,
    residual: Tensor,
    update: Tensor,
    update_weight: Tensor,
    next_weight: Tensor | None,
    eps: float,
    scale: Tensor | None,
) -> RowToMake | None:
    """The row that the product with `weight` is to make of the arguments of `add_norm`. None: `add_norm` makes it."""
    if residual.shape[0] != 1:  # at once: every norm of a prompt asks
        return None
    if not runs_on_hopper(residual.device) or normed_ring_of(*weight.shape) is None:
        return None
    from facet.kernels.linear import warpgroup_ring  # here and below: imports Gluon

    is_whole = residual.is_contiguous() and update.is_contiguous()
    if not is_whole or not warpgroup_ring.can_run(residual, weight):
        return None
    return RowToMake(
        residual=residual,
        update=update,
        update_weight=update_weight,
        next_weight=next_weight,
        eps=eps,
        scale=scale,
        stream=torch.empty_like(residual),
    )


def linear(row: RowToMake, weight: Tensor) -> Tensor:
    from facet.kernels.linear import normed_ring

    return normed_ring.linear(row, weight, _ring_of(weight))


def geglu_linear(row: RowToMake, weight: Tensor) -> Tensor:
    from facet.kernels.linear import normed_ring

    return normed_ring.geglu_linear(row, weight, _ring_of(weight))


def gated_input_linear(row: RowToMake, weight: Tensor, per_layer_input: Tensor) -> Tensor:
    from facet.kernels.linear import normed_ring

    return normed_ring.gated_input_linear(row, weight, per_layer_input, _ring_of(weight))


def _ring_of(weight: Tensor) -> WarpgroupRing:
    ring = normed_ring_of(*weight.shape)
    assert ring is not None, "some rows of a weight have a ring where all have"
    return ring
