"""Launches the kernel that makes a row of the stream, normalises it and multiplies it."""

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.linear.normed_ring_kernel import normed_ring_kernel
from facet.kernels.linear.ring_config import WarpgroupRing
from facet.kernels.linear.row_to_make import RowToMake
from facet.kernels.linear.warpgroup_ring import units


def linear(row: RowToMake, weight: Tensor, ring: WarpgroupRing) -> Tensor:
    return _run(row, weight, None, ring)


def geglu_linear(row: RowToMake, weight: Tensor, ring: WarpgroupRing) -> Tensor:
    return _run(row, weight, None, ring, num_parts=2)


def gated_input_linear(row: RowToMake, weight: Tensor, per_layer_input: Tensor, ring: WarpgroupRing) -> Tensor:
    return _run(row, weight, per_layer_input, ring)


def _run(row: RowToMake, weight: Tensor, gated: Tensor | None, ring: WarpgroupRing, *, num_parts: int = 1) -> Tensor:
    assert weight.stride(1) == 1, "the rows of a weight are contiguous"
    if gated is not None:
        gated = gated.contiguous()
    num_out = weight.shape[0] // num_parts
    parts = weight.view(num_parts, num_out, weight.shape[1])
    output = torch.empty(1, num_out, dtype=weight.dtype, device=weight.device)
    normed_ring_kernel[(triton.cdiv(weight.shape[0], ring.num_out),)](
        row.residual,
        row.update,
        row.update_weight,
        row.next_weight,
        row.scale,
        row.stream,
        units(parts, ring.wide_out, ring.block_in, num_parts),
        units(parts, ring.more_out, ring.block_in, num_parts) if ring.more_out else None,
        output if gated is None else gated,
        output,
        row.eps,
        num_out,
        NUM_IN=weight.shape[1],
        HAS_GATED_INPUT=gated is not None,
        STAGES=ring.num_stages,
        num_warps=4,
        **launch_options(weight.device),
    )
    return output
