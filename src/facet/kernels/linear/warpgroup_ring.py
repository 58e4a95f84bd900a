"""Launches the kernel that multiplies few rows by the products of a warpgroup."""

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.gluon_names import TensorDescriptor
from facet.kernels.gluon_parts import layout_of
from facet.kernels.linear.ring_config import WarpgroupRing
from facet.kernels.linear.warpgroup_ring_kernel import warpgroup_ring_kernel


def can_run(x: Tensor, weight: Tensor) -> bool:
    """Whether descriptors can tell where rows begin, which is where whole units of 16 bytes do; and whether there are
    whole eights of outputs, of gates and ups each, and whole 64s of inputs."""
    is_aligned = weight.data_ptr() % 16 == 0 and weight.stride(0) % 8 == 0
    is_whole = weight.shape[0] % 16 == 0 and weight.shape[1] % 64 == 0
    return is_aligned and is_whole and x.dtype == weight.dtype == torch.bfloat16


def linear(x: Tensor, weight: Tensor, ring: WarpgroupRing) -> Tensor:
    return _run(x, weight, None, ring)


def geglu_linear(x: Tensor, weight: Tensor, ring: WarpgroupRing) -> Tensor:
    return _run(x, weight, None, ring, num_parts=2)


def gated_input_linear(x: Tensor, weight: Tensor, per_layer_input: Tensor, ring: WarpgroupRing) -> Tensor:
    return _run(x, weight, per_layer_input, ring)


def _run(x: Tensor, weight: Tensor, gated: Tensor | None, ring: WarpgroupRing, *, num_parts: int = 1) -> Tensor:
    num_rows, num_in = x.shape
    assert weight.stride(1) == 1, "the rows of a weight are contiguous"
    if x.stride(1) != 1 or x.stride(0) % 8 != 0 or x.data_ptr() % 16 != 0:
        x = x.clone(memory_format=torch.contiguous_format)
    if gated is not None and gated.stride(1) != 1:
        gated = gated.contiguous()
    num_out = weight.shape[0] // num_parts
    output = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    num_programs = triton.cdiv(num_rows, ring.num_rows) * triton.cdiv(weight.shape[0], ring.num_out)
    rows, parts = (ring.num_rows, ring.block_in), weight.view(num_parts, num_out, weight.shape[1])
    warpgroup_ring_kernel[(num_programs,)](
        TensorDescriptor.from_tensor(x, list(rows), layout_of(rows)),
        units(parts, ring.wide_out, ring.block_in, num_parts),
        units(parts, ring.more_out, ring.block_in, num_parts) if ring.more_out else None,
        x if gated is None else gated,
        output,
        0 if gated is None else gated.stride(0),
        num_rows,
        num_out,
        NUM_IN=num_in,
        HAS_GATED_INPUT=gated is not None,
        STAGES=ring.num_stages,
        num_warps=4,
        **launch_options(x.device),
    )
    return output


def units(matrices: Tensor, outputs: int, block_in: int, num_parts: int) -> TensorDescriptor:
    """Matrices [matrices, outputs, inputs] as copies take them: `outputs` of one, or of gates and ups, which are two,
    with zeros beyond the end of each. The driver makes a map of a descriptor at every launch, so that little would be
    saved by keeping it."""
    num_matrices, num_out, num_in = matrices.shape
    block = (outputs // num_parts // 8, num_parts, block_in // 64, 8, 64)
    return TensorDescriptor(
        base=matrices,
        shape=[num_out // 8, num_matrices, num_in // 64, 8, 64],
        strides=[8 * matrices.stride(1), matrices.stride(0), 64, matrices.stride(1), 1],
        block_shape=list(block),
        layout=layout_of(block),
    )
