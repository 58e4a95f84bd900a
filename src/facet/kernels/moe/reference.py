"""The definition of routing and experts."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from facet.kernels.linear.reference import geglu_linear, linear
from facet.kernels.moe.groups import Groups, empty_groups


def route(router_logits: Tensor, num_chosen: int, expert_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [rows, num_chosen] (float32) and expert ids of the chosen experts.

    A softmax over all experts, renormalised over the chosen, and only then multiplied by each expert's own scale:
    the weights of a row need not sum to one.
    """
    probabilities = router_logits.float().softmax(dim=-1)
    weights, chosen = probabilities.topk(num_chosen, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights * expert_scale.float()[chosen], chosen


def run_experts(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Sum over a row's chosen experts of weight * down(geglu(gate_up(x))).

    gate_up: [experts, 2 * width, hidden], gate rows first; down: [experts, hidden, width].
    """
    return sum_of_chosen(x, weights, chosen, lambda rows, e: linear(geglu_linear(rows, gate_up[e]), down[e]))


def group_pairs(chosen: Tensor, num_experts: int, group_size: int) -> Groups:
    """The groups of choices [rows, choices]. Each has `group_size` pairs, the last of an expert what is left."""
    groups = empty_groups(chosen, num_experts, group_size)
    groups.order.copy_(chosen.flatten().argsort(stable=True))
    groups.table.zero_()
    groups.taken.zero_()
    ends = torch.bincount(chosen.flatten(), minlength=num_experts).cumsum(0).tolist()
    listed = [
        (expert, first, min(first + group_size, end))
        for expert, (start, end) in enumerate(pairwise([0, *ends]))
        for first in range(start, end, group_size)
    ]
    groups.table[: len(listed)] = torch.tensor(listed, dtype=torch.int32).view(-1, 3)
    return groups


def sum_of_chosen(x: Tensor, weights: Tensor, chosen: Tensor, run_expert: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Sum over a row's chosen experts of weight * run_expert(x, expert).

    Rows are sorted by expert so that each expert in use runs once. A row's results are summed in the order of its
    choices, in float32, so that its company in the batch does not change them.
    """
    num_rows, num_chosen = chosen.shape
    order = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten()).tolist()
    sorted_x = x[order // num_chosen]
    outputs = torch.empty_like(sorted_x)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            rows = slice(start, start + count)
            outputs[rows] = run_expert(sorted_x[rows], expert)
            start += count
    by_choice = torch.empty_like(outputs)
    by_choice[order] = outputs
    return (by_choice.view(num_rows, num_chosen, -1) * weights[..., None]).sum(dim=1).to(x.dtype)
