"""Chooses experts for each row and computes them. Triton on a GPU, elsewhere the reference."""

from torch import Tensor

from facet.kernels.moe import reference
from facet.kernels.moe.changed import BeginAddition, run_changed_experts
from facet.kernels.moe.invariant import run_experts as invariant_run_experts

__all__ = ["BeginAddition", "invariant_run_experts", "route", "run_changed_experts", "run_experts"]


def route(router_logits: Tensor, num_chosen: int, expert_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [rows, num_chosen] (float32) and ids (int64) of the most probable experts, most probable first.

    Weights are renormalised over the chosen and then multiplied by each expert's own scale.
    """
    if router_logits.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.moe import triton

        return triton.route(router_logits, num_chosen, expert_scale)
    return reference.route(router_logits, num_chosen, expert_scale)


def run_experts(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Sum over a row's chosen experts of weight * down(geglu(gate_up(x))), in the order of its choices.

    gate_up: [experts, 2 * width, hidden], gate rows first; down: [experts, hidden, width].
    """
    if x.is_cuda:
        from facet.kernels.moe import triton

        return triton.run_experts(x, weights, chosen, gate_up, down)
    return reference.run_experts(x, weights, chosen, gate_up, down)
