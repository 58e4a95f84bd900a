"""Launches the kernel for some tens of rows."""

import torch
import triton
from torch import Tensor

from facet.kernels.arrivals import counters_on
from facet.kernels.dependent_launch import launch_options
from facet.kernels.hopper import num_multiprocessors
from facet.kernels.quantized.int4.wide import in_order_of_codes
from facet.kernels.quantized.int8_groups.language import gl
from facet.kernels.quantized.int8_groups.shuffled import ShuffledInt8
from facet.kernels.quantized.int8_groups.tuning import (
    TURN_IN,
    WideTuning,
    choose_wide_tuning,
    constants_of_wide,
    num_turns_of,
)
from facet.kernels.quantized.int8_groups.wide_kernel import wide_kernel
from facet.kernels.quantized.shuffled_product import TILE_OUT, operands


def can_run(matrix: ShuffledInt8) -> bool:
    """Whether codes begin where 16 bytes can be copied at once."""
    return matrix.codes.data_ptr() % 16 == 0


def multiply(
    x: Tensor, matrix: ShuffledInt8, per_layer_input: Tensor | None = None, tuning: WideTuning | None = None
) -> Tensor:
    assert can_run(matrix), "such products go another way"
    num_rows = x.shape[0]
    if tuning is None:
        tuning = choose_wide_tuning(matrix.num_tiles, matrix.num_blocks, num_rows, num_multiprocessors(x.device))
    x, gates, gate_stride, output, constants = operands(x, matrix, per_layer_input)
    num_row_groups = triton.cdiv(num_rows, tuning.rows)
    ordered = in_order_of_codes(
        x,
        num_row_groups * tuning.rows,
        num_turns_of(matrix.num_blocks) * TURN_IN,
        num_pairs=2 if matrix.in_sixteens else 4,
        tile_rows=tuning.rows,
        tile_in=TURN_IN,
    )
    num_programs = num_row_groups * tuning.programs
    partial_sums = torch.empty(
        (num_programs, 2, TILE_OUT * tuning.tiles, tuning.rows), dtype=torch.float32, device=x.device
    )
    wide_kernel[(num_programs,)](
        ordered,
        matrix.codes,
        matrix.scales,
        gates,
        output,
        partial_sums,
        counters_on(x.device, num_row_groups * triton.cdiv(matrix.num_tiles, tuning.tiles)),
        gate_stride,
        num_rows,
        matrix.num_tiles,
        matrix.num_blocks,
        **constants,
        SCALE_DTYPE=getattr(gl, "float16" if matrix.num_levels else matrix.format.scales.dtype),
        **constants_of_wide(matrix, tuning),
        **launch_options(x.device),
    )
    return output
