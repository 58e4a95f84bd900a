"""Launches the kernel that multiplies few rows by the products of a warpgroup."""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.gluon_names import TensorDescriptor
from facet.kernels.gluon_parts import layout_of
from facet.kernels.linear.ring_config import WarpgroupRing
from facet.kernels.linear.warpgroup_ring_kernel import warpgroup_ring_kernel


def can_run(x: Tensor, weight: Tensor) -> bool:
    """Whether descriptors can tell where rows begin, which is where whole units of 16 bytes do."""
    is_aligned = weight.data_ptr() % 16 == 0 and weight.stride(0) % 8 == 0
    return is_aligned and x.dtype == weight.dtype == torch.bfloat16 and weight.shape[1] % 8 == 0


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
    num_out, outputs, more_outputs = (size // num_parts for size in (weight.shape[0], ring.wide_out, ring.more_out))
    output = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    parts, strides = (num_parts, num_out, num_in), (num_out * weight.stride(0), weight.stride(0), 1)
    num_programs = triton.cdiv(num_rows, ring.num_rows) * triton.cdiv(num_out, outputs + more_outputs)
    warpgroup_ring_kernel[(num_programs,)](
        _tiles(x, x.shape, x.stride(), (ring.num_rows, ring.block_in)),
        _tiles(weight, parts, strides, (num_parts, outputs, ring.block_in)),
        _tiles(weight, parts, strides, (num_parts, more_outputs, ring.block_in)) if more_outputs else None,
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


def _tiles(tensor: Tensor, shape: Sequence[int], strides: Sequence[int], block: tuple[int, ...]) -> TensorDescriptor:
    """As copies take them, with zeros beyond the tensor's end. The driver makes a map of it at every launch, so that
    little would be saved if they were kept."""
    return TensorDescriptor(
        base=tensor, shape=list(shape), strides=list(strides), block_shape=list(block), layout=layout_of(block)
    )
