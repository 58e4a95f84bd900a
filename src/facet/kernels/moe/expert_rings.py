"""Experts for few rows on Hopper GPUs: the same meaning and bits as grouped products, without groups."""

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.gluon_names import TensorDescriptor
from facet.kernels.gluon_parts import layout_of
from facet.kernels.linear.ring_config import WarpgroupRing
from facet.kernels.linear.warpgroup_ring import units
from facet.kernels.moe.expert_ring_kernel import expert_ring_kernel


def can_run(x: Tensor, gate_up: Tensor, down: Tensor) -> bool:
    """Whether the types and shapes are ones that the kernel takes: whole eights of outputs, whole 64s of inputs."""
    tensors = (x, gate_up, down)
    return (
        all(each.dtype == torch.bfloat16 and each.is_contiguous() and each.data_ptr() % 16 == 0 for each in tensors)
        and gate_up.shape[2] % 64 == 0
        and down.shape[2] % 64 == 0
    )


def multiply_pairs(
    x: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, rings: tuple[WarpgroupRing, WarpgroupRing]
) -> Tensor:
    """Results [pairs, hidden size]. `rings`: of the two products, both with as many rows as there are, or more."""
    num_experts, hidden_size, width = down.shape
    num_pairs, num_rows = chosen.numel(), rings[0].num_rows
    assert len(x) <= num_rows == rings[1].num_rows
    hidden = torch.empty(num_pairs * num_rows, width, dtype=x.dtype, device=x.device)
    _multiply(x, chosen, gate_up.view(2 * num_experts, width, hidden_size), hidden, rings[0], num_parts=2)
    by_pair = torch.empty(num_pairs, hidden_size, dtype=x.dtype, device=x.device)
    _multiply(hidden, chosen, down, by_pair, rings[1], num_parts=1)
    return by_pair


def _multiply(
    source: Tensor, chosen: Tensor, matrices: Tensor, result: Tensor, ring: WarpgroupRing, *, num_parts: int
) -> None:
    _, num_out, num_in = matrices.shape
    num_rows, num_chosen = chosen.shape
    assert ring.num_out % (8 * num_parts) == 0
    rows = (ring.num_rows, ring.block_in)
    expert_ring_kernel[(chosen.numel() * triton.cdiv(num_parts * num_out, ring.num_out),)](
        TensorDescriptor.from_tensor(source, list(rows), layout_of(rows)),
        units(matrices, ring.wide_out, ring.block_in, num_parts),
        units(matrices, ring.more_out, ring.block_in, num_parts) if ring.more_out else None,
        chosen,
        result,
        num_rows,
        num_out,
        NUM_IN=num_in,
        NUM_CHOSEN=num_chosen,
        CHOSEN_PAD=triton.next_power_of_2(num_chosen),
        STAGES=ring.num_stages,
        num_warps=4,
        **launch_options(source.device),
    )
