"""Experts with something added to the results of each product: both products apart, pairs in order of their experts."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from facet.kernels.low_rank import LowRankAddition

# Begins what is added to the results of a product, by what the product is given.
BeginAddition = Callable[[Tensor], LowRankAddition]


def run_changed_experts(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: Tensor,
    down: Tensor,
    additions_of: Callable[[Tensor], tuple[BeginAddition, BeginAddition]],
    *,
    linear: Callable[[Tensor, Tensor], Tensor],
    geglu: Callable[[Tensor], Tensor],
) -> Tensor:
    """Like `run_experts`, but something is added to what gate_up makes, before the activation, and to what down makes.

    `additions_of` is told the numbers of the pairs, in the order in which both products have them. `linear` is the
    product that is used on a CPU, `geglu` the activation everywhere.
    """
    num_rows, num_chosen = chosen.shape
    if num_rows == 0:
        return torch.empty_like(x)
    if x.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.moe.triton_changed import combine, sorted_products

        order, multiply = sorted_products(chosen, len(gate_up), x.element_size())
    else:
        order, multiply = _sorted_products(chosen, len(gate_up), linear)
    to_gates, to_results = additions_of(order)
    inputs = x[order // num_chosen]
    addition = to_gates(inputs)
    hidden = addition.geglu_of(multiply(inputs, gate_up), geglu)
    addition = to_results(hidden)
    results = multiply(hidden, down)
    addition.add_to(results)
    by_pair = torch.empty_like(results)
    by_pair[order] = results
    if x.is_cuda:
        return combine(by_pair, weights.contiguous())
    return (by_pair.view(num_rows, num_chosen, -1) * weights[..., None]).sum(dim=1).to(x.dtype)


def _sorted_products(
    chosen: Tensor, num_experts: int, linear: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """The pairs in order of their experts, and what multiplies rows in this order, each by the matrix of its expert."""
    order = chosen.flatten().argsort(stable=True)
    ends = torch.bincount(chosen.flatten(), minlength=num_experts).cumsum(0).tolist()

    def multiply(rows: Tensor, matrices: Tensor) -> Tensor:
        results = rows.new_empty(len(rows), matrices.shape[1])
        for expert, (start, end) in enumerate(pairwise([0, *ends])):
            if start < end:
                results[start:end] = linear(rows[start:end], matrices[expert])
        return results

    return order, multiply
