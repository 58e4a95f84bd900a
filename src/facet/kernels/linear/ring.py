"""Launches the kernel that reads a weight through a ring of tiles."""

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.linear.ring_config import Ring
from facet.kernels.linear.ring_kernel import ring_kernel


def can_run(x: Tensor, weight: Tensor) -> bool:
    """Whether rows begin where 16 bytes can be copied at once."""
    aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (x, weight))
    return aligned and x.element_size() == 2 and weight.shape[1] % 16 == 0 and weight.stride(0) % 16 == 0


def linear(x: Tensor, weight: Tensor, ring: Ring) -> Tensor:
    return _run(x, weight, None, ring)


def geglu_linear(x: Tensor, weight: Tensor, ring: Ring) -> Tensor:
    return _run(x, weight, None, ring, is_gated=True)


def gated_input_linear(x: Tensor, weight: Tensor, per_layer_input: Tensor, ring: Ring) -> Tensor:
    return _run(x, weight, per_layer_input, ring)


def _run(x: Tensor, weight: Tensor, gated: Tensor | None, ring: Ring, *, is_gated: bool = False) -> Tensor:
    num_rows, num_in = x.shape
    assert weight.stride(1) == 1, "the rows of a weight are contiguous"
    if x.stride(1) != 1 or x.stride(0) % 16 != 0:
        x = x.contiguous()
    if gated is not None and gated.stride(1) != 1:
        gated = gated.contiguous()
    num_out, out_per_program = weight.shape[0], 16 * ring.num_warps
    if is_gated:
        num_out, out_per_program = num_out // 2, out_per_program // 2
    output = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    ring_kernel[(triton.cdiv(num_rows, ring.num_rows) * triton.cdiv(num_out, out_per_program),)](
        x,
        weight,
        x if gated is None else gated,
        output,
        x.stride(0),
        weight.stride(0),
        0 if gated is None else gated.stride(0),
        num_rows,
        num_out,
        NUM_IN=num_in,
        IS_GATED=is_gated,
        HAS_GATED_INPUT=gated is not None,
        ROWS=ring.num_rows,
        BLOCK_IN=ring.block_in,
        STAGES=ring.num_stages,
        NUM_WARPS=ring.num_warps,
        num_warps=ring.num_warps,
        **launch_options(x.device),
    )
    return output
