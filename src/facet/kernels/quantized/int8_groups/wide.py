"""Launches the kernel for some tens of rows."""

from torch import Tensor

from facet.kernels.hopper import num_multiprocessors
from facet.kernels.quantized.int8_groups.shuffled import ShuffledInt8
from facet.kernels.quantized.int8_groups.tuning import (
    choose_wide_tuning,
    constants_of_wide,
    num_turns_of,
)
from facet.kernels.quantized.int8_groups.wide_kernel import wide_kernel
from facet.kernels.quantized.shuffled.language import gl
from facet.kernels.quantized.shuffled.wide_launch import launch
from facet.kernels.quantized.shuffled.wide_tuning import WideTuning


def can_run(matrix: ShuffledInt8) -> bool:
    """Whether codes begin where 16 bytes can be copied at once."""
    return matrix.codes.data_ptr() % 16 == 0


def multiply(
    x: Tensor, matrix: ShuffledInt8, per_layer_input: Tensor | None = None, tuning: WideTuning | None = None
) -> Tensor:
    assert can_run(matrix), "such products go another way"
    if tuning is None:
        tuning = choose_wide_tuning(matrix.num_tiles, matrix.num_blocks, x.shape[0], num_multiprocessors(x.device))
    constants = dict(
        SCALE_DTYPE=getattr(gl, "float16" if matrix.num_levels else matrix.format.scales.dtype),
        **constants_of_wide(matrix, tuning),
    )
    return launch(
        wide_kernel,
        x,
        matrix,
        per_layer_input,
        tuning,
        (matrix.codes, matrix.scales),
        num_turns=num_turns_of(matrix.num_blocks),
        num_pairs=2 if matrix.in_sixteens else 4,
        constants=constants,
    )
