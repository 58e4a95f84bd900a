"""Launches the kernels that bring few rows' codes through rings."""

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.quantized.int4.ring_16_kernel import ring_16_kernel
from facet.kernels.quantized.int4.ring_kernel import ring_kernel
from facet.kernels.quantized.int4.shuffled import ShuffledInt4
from facet.kernels.quantized.int4.tuning import Ring, ring_of
from facet.kernels.quantized.shuffled.language import gl
from facet.kernels.quantized.shuffled_product import operands

# Two tiles of those that tensor cores multiply at once.
_MOST_ROWS = 16


def can_run(x: Tensor, matrix: ShuffledInt4) -> bool:
    """Whether there are few rows, no zeros to copy, and codes that begin where 16 bytes can be copied at once."""
    aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (matrix.codes, matrix.scales))
    # Rings of 16 rows have neither values with scales nor minimums.
    most_rows = _MOST_ROWS if matrix.factors is None and matrix.coarse is None else _MOST_ROWS // 2
    return x.dtype == torch.bfloat16 and 0 < x.shape[0] <= most_rows and matrix.zeros is None and aligned


def multiply(
    x: Tensor, matrix: ShuffledInt4, per_layer_input: Tensor | None = None, ring: Ring | None = None
) -> Tensor:
    assert can_run(x, matrix), "such products go another way"
    assert matrix.num_inputs % 8 == 0, "a thread takes eight inputs at a time"
    x, gates, gate_stride, output, of_sums = operands(x, matrix, per_layer_input)
    ring = ring or ring_of(matrix.num_tiles, matrix.num_blocks, x.shape[0], has_minimums=matrix.has_minimums)
    assert x.shape[0] <= 8 * ring.row_tiles, "a program takes all rows"
    words = x.view(torch.int32)
    assert ring.has_minimums == matrix.has_minimums, "a ring for such blocks"
    codes, scales, coarse = matrix.words()
    grid = (triton.cdiv(matrix.num_tiles, ring.tiles * ring.num_out_warps),)
    tensors = (words, codes, scales, gates, output)
    strides = (words.stride(0), gate_stride)
    constants = dict(
        SCALE_DTYPE=getattr(gl, matrix.scale_type),
        GROUPS=matrix.scales.shape[-2],
        **of_sums,
        **ring.constants(matrix),
        **launch_options(x.device),
    )
    num_rows, num_tiles, num_blocks, num_in = x.shape[0], matrix.num_tiles, matrix.num_blocks, matrix.num_inputs
    if ring.row_tiles == 1:
        beside = (matrix.factors, coarse if matrix.has_minimums else None)
        ring_kernel[grid](*tensors, *beside, *strides, num_rows, num_tiles, num_blocks, num_in, **constants)
    else:
        assert num_tiles >= ring.tiles * ring.num_out_warps, "every program has all of its tiles"
        ring_16_kernel[grid](*tensors, *strides, num_rows, num_tiles, num_in, NUM_BLOCKS=num_blocks, **constants)
    return output
