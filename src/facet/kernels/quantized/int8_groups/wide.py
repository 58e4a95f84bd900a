"""Launches the kernel for some tens of rows."""

from torch import Tensor

from facet.kernels.hopper import num_multiprocessors
from facet.kernels.quantized.int4.wide_launch import launch
from facet.kernels.quantized.int8_groups.language import gl
from facet.kernels.quantized.int8_groups.shuffled import ShuffledInt8
from facet.kernels.quantized.int8_groups.tuning import (
    WideTuning,
    choose_wide_tuning,
    constants_of_wide,
    num_turns_of,
)
from facet.kernels.quantized.int8_groups.wide_kernel import wide_kernel


def can_run(matrix: ShuffledInt8) -> bool:
    """Whether codes begin where 16 bytes can be copied at once."""
    return matrix.codes.data_ptr() % 16 == 0


def linear(x: Tensor, matrix: ShuffledInt8, tuning: WideTuning | None = None) -> Tensor:
    assert not matrix.is_gated, "gates and ups are interleaved for geglu_linear alone"
    return _run(x, matrix, None, tuning)


def geglu_linear(x: Tensor, matrix: ShuffledInt8, tuning: WideTuning | None = None) -> Tensor:
    assert matrix.is_gated, "gates and ups have to be interleaved"
    return _run(x, matrix, None, tuning)


def gated_input_linear(
    x: Tensor, matrix: ShuffledInt8, per_layer_input: Tensor, tuning: WideTuning | None = None
) -> Tensor:
    assert not matrix.is_gated, "gates and ups are interleaved for geglu_linear alone"
    return _run(x, matrix, per_layer_input, tuning)


def _run(x: Tensor, matrix: ShuffledInt8, gated: Tensor | None, tuning: WideTuning | None) -> Tensor:
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
        gated,
        tuning,
        (matrix.codes, matrix.scales),
        num_turns=num_turns_of(matrix.num_blocks),
        num_pairs=2 if matrix.in_sixteens else 4,
        constants=constants,
    )
