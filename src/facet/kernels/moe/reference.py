"""The definition of routing and experts."""

import torch
from torch import Tensor

from facet.kernels.linear import invariant
from facet.kernels.linear import reference as plain


def route(router_logits: Tensor, num_chosen: int, expert_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [rows, num_chosen] (float32) and expert ids of the chosen experts.

    A softmax over all experts, renormalised over the chosen, and only then multiplied by each expert's own scale:
    the weights of a row need not sum to one.
    """
    probabilities = router_logits.float().softmax(dim=-1)
    weights, chosen = probabilities.topk(num_chosen, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights * expert_scale.float()[chosen], chosen


def run_experts(
    x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, *, is_invariant: bool = False
) -> Tensor:
    """Sum over a row's chosen experts of weight * down(geglu(gate_up(x))).

    gate_up: [experts, 2 * width, hidden], gate rows first; down: [experts, hidden, width]. Rows are sorted by expert
    so that each expert in use runs once. A row's results are summed in the order of its choices, in float32, so
    that its company in the batch does not change them.
    """
    products = invariant if is_invariant else plain
    num_rows, num_chosen = chosen.shape
    order = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=gate_up.shape[0]).tolist()
    sorted_x = x[order // num_chosen]
    outputs = torch.empty_like(sorted_x)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            rows = slice(start, start + count)
            hidden = products.geglu_linear(sorted_x[rows], gate_up[expert])
            outputs[rows] = products.linear(hidden, down[expert])
            start += count
    by_choice = torch.empty_like(outputs)
    by_choice[order] = outputs
    return (by_choice.view(num_rows, num_chosen, -1) * weights[..., None]).sum(dim=1).to(x.dtype)
