"""Grouped products on Hopper GPUs: the same meaning and bits as `triton_groups.multiply_groups` in bfloat16."""

import torch
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.gluon_parts import vector_tiles
from facet.kernels.hopper import num_multiprocessors
from facet.kernels.moe.groups import Groups
from facet.kernels.moe.hopper_kernel import GROUP_SIZE, LAUNCH, hopper_kernel
from facet.kernels.moe.hopper_turns import num_tiles


def can_multiply(source: Tensor, matrices: Tensor, group_size: int, *, is_first: bool) -> bool:
    """Whether the types and shapes are ones that the kernel takes."""
    num_in = matrices.shape[2]
    return (
        group_size == GROUP_SIZE
        and source.dtype == matrices.dtype == torch.bfloat16
        and source.is_contiguous()
        and matrices.is_contiguous()
        # Threads copy rows of x 64 inputs at a time; descriptors end where a row does, after whole units of 16 bytes.
        and num_in % (64 if is_first else 8) == 0
        and source.data_ptr() % 16 == matrices.data_ptr() % 16 == 0
    )


def multiply_groups(
    source: Tensor,
    groups: Groups,
    matrices: Tensor,
    result: Tensor,
    num_chosen: int | None,
    first_expert: int = 0,
) -> None:
    """Like `triton_groups.multiply_groups`, for groups of GROUP_SIZE pairs."""
    num_experts, num_out, num_in = matrices.shape
    is_first = num_chosen is not None
    assert can_multiply(source, matrices, GROUP_SIZE, is_first=is_first), "other types and shapes are for triton_groups"
    num_turns = groups.num_groups * num_tiles(num_out)
    hopper_kernel[(min(num_turns, num_multiprocessors(source.device)),)](
        source if is_first else vector_tiles(source, 64),
        vector_tiles(matrices, 64),
        groups.order,
        groups.table,
        groups.taken,
        result,
        groups.num_groups,
        first_expert,
        num_experts,
        NUM_OUT=num_out,
        NUM_IN=num_in,
        NUM_CHOSEN=num_chosen or 1,
        IS_FIRST=is_first,
        **LAUNCH,
        **launch_options(result.device),
    )
