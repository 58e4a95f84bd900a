"""Experts whose rows are bit for bit the same whichever other rows chose the same experts."""

from torch import Tensor

from facet.kernels.linear.invariant import geglu_linear, linear
from facet.kernels.moe.config import invariant_tiles
from facet.kernels.moe.reference import sum_of_chosen


def run_experts(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Sum over a row's chosen experts of weight * down(geglu(gate_up(x))), in the order of its choices."""
    if x.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.moe import triton

        tiles = invariant_tiles(chosen.numel(), len(gate_up), x.element_size())
        return triton.run_experts(x, weights, chosen, gate_up, down, tiles)
    return sum_of_chosen(x, weights, chosen, lambda rows, e: linear(geglu_linear(rows, gate_up[e]), down[e]))
