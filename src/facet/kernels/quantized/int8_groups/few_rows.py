"""Launches the kernel for few rows."""

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.quantized.int8_groups.few_rows_kernel import few_rows_kernel
from facet.kernels.quantized.int8_groups.shuffled import ShuffledInt8
from facet.kernels.quantized.int8_groups.tuning import Tuning, choose_tuning, constants_of, rows_of_program
from facet.kernels.quantized.shuffled.language import gl
from facet.kernels.quantized.shuffled_product import operands


def multiply(
    x: Tensor, matrix: ShuffledInt8, per_layer_input: Tensor | None = None, tuning: Tuning | None = None
) -> Tensor:
    x, gates, gate_stride, output, constants = operands(x, matrix, per_layer_input)
    num_rows = x.shape[0]
    tuning = tuning or choose_tuning(matrix.num_tiles, matrix.num_blocks, num_rows)
    rows = rows_of_program(num_rows)
    grid = (triton.cdiv(num_rows, rows) * triton.cdiv(matrix.num_tiles, tuning.tiles * tuning.num_out_warps),)
    words = x.view(torch.int32)
    few_rows_kernel[grid](
        words,
        matrix.codes,
        matrix.scales,
        gates,
        output,
        words.stride(0),
        gate_stride,
        num_rows,
        matrix.num_tiles,
        matrix.num_blocks,
        matrix.num_inputs,
        SCALE_DTYPE=getattr(gl, "float16" if matrix.num_levels else matrix.format.scales.dtype),
        **constants,
        **constants_of(matrix, tuning, rows),
        **launch_options(x.device),
    )
    return output
