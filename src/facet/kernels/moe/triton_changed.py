"""What `changed.py` needs on a GPU: products of sorted pairs. The host never waits for the GPU."""

from collections.abc import Callable

import torch
from torch import Tensor

from facet.kernels.moe.config import choose_tiles
from facet.kernels.moe.triton_groups import ExpertMatrices, combine, multiply_groups
from facet.kernels.moe.triton_sorting import group_pairs

__all__ = ["combine", "sorted_products"]


def sorted_products(
    chosen: Tensor, num_experts: int, element_size: int
) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """The pairs in order of their experts, and what multiplies rows in this order, each by the matrix of its expert."""
    _, tiles = choose_tiles(chosen.numel(), num_experts, element_size)
    groups = group_pairs(chosen.contiguous(), num_experts, tiles.block_rows)

    def multiply(rows: Tensor, matrices: Tensor) -> Tensor:
        by_pair = torch.empty(len(rows), matrices.shape[1], dtype=rows.dtype, device=rows.device)
        multiply_groups(rows, groups, ExpertMatrices(matrices), by_pair, None, tiles)
        return by_pair[groups.order]

    return groups.order, multiply
