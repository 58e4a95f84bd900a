"""Launches the kernel that brings few rows' codes through rings."""

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.quantized.int8_groups.ring_kernel import ring_kernel
from facet.kernels.quantized.int8_groups.shuffled import ShuffledInt8
from facet.kernels.quantized.int8_groups.tuning import MAX_RING_ROWS, Ring, constants_of_ring, ring_of
from facet.kernels.quantized.shuffled.language import gl
from facet.kernels.quantized.shuffled_product import operands


def can_run(x: Tensor, matrix: ShuffledInt8) -> bool:
    """Whether there are few rows, and codes that begin where 16 bytes can be copied at once."""
    return 0 < x.shape[0] <= MAX_RING_ROWS and matrix.codes.data_ptr() % 16 == 0


def multiply(
    x: Tensor, matrix: ShuffledInt8, per_layer_input: Tensor | None = None, ring: Ring | None = None
) -> Tensor:
    assert can_run(x, matrix), "such products go another way"
    x, gates, gate_stride, output, constants = operands(x, matrix, per_layer_input)
    ring = ring or ring_of(matrix.num_tiles, matrix.num_blocks, matrix.num_levels, x.shape[0])
    assert x.shape[0] <= 8 * ring.row_tiles, "a program takes all rows"
    words = x.view(torch.int32)
    ring_kernel[(triton.cdiv(matrix.num_tiles, ring.tiles * ring.num_out_warps),)](
        words,
        matrix.codes,
        matrix.scales,
        gates,
        output,
        words.stride(0),
        gate_stride,
        x.shape[0],
        matrix.num_tiles,
        matrix.num_blocks,
        matrix.num_inputs,
        SCALE_DTYPE=getattr(gl, "float16" if matrix.num_levels else matrix.format.scales.dtype),
        **constants,
        **constants_of_ring(matrix, ring),
        **launch_options(x.device),
    )
    return output
