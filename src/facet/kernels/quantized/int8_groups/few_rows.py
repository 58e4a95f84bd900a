"""Launches the kernel for few rows."""

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.quantized.int8_groups.few_rows_kernel import few_rows_kernel
from facet.kernels.quantized.int8_groups.language import gl
from facet.kernels.quantized.int8_groups.shuffled import TILE_OUT, ShuffledInt8
from facet.kernels.quantized.int8_groups.tuning import Tuning, choose_tuning, constants_of, rows_of_program


def linear(x: Tensor, matrix: ShuffledInt8, tuning: Tuning | None = None) -> Tensor:
    assert not matrix.is_gated, "gates and ups are interleaved for geglu_linear alone"
    return _run(x, matrix, None, tuning)


def geglu_linear(x: Tensor, matrix: ShuffledInt8, tuning: Tuning | None = None) -> Tensor:
    assert matrix.is_gated, "gates and ups have to be interleaved"
    return _run(x, matrix, None, tuning)


def gated_input_linear(
    x: Tensor, matrix: ShuffledInt8, per_layer_input: Tensor, tuning: Tuning | None = None
) -> Tensor:
    assert not matrix.is_gated, "gates and ups are interleaved for geglu_linear alone"
    return _run(x, matrix, per_layer_input, tuning)


def _run(x: Tensor, matrix: ShuffledInt8, gated: Tensor | None, tuning: Tuning | None) -> Tensor:
    assert x.dtype == torch.bfloat16, "pairs of bfloat16 numbers are what a word has"
    if x.stride(1) != 1 or x.stride(0) % 8 != 0:
        x = x.contiguous()
    if gated is not None and gated.stride(1) != 1:
        gated = gated.contiguous()
    num_rows = x.shape[0]
    tuning = tuning or choose_tuning(matrix.num_tiles, matrix.num_blocks, num_rows)
    width = TILE_OUT // 2 if matrix.is_gated else TILE_OUT
    output = torch.empty(num_rows, matrix.num_tiles * width, dtype=x.dtype, device=x.device)
    rows = rows_of_program(num_rows)
    grid = (triton.cdiv(num_rows, rows) * triton.cdiv(matrix.num_tiles, tuning.tiles * tuning.num_out_warps),)
    words = x.view(torch.int32)
    few_rows_kernel[grid](
        words,
        matrix.codes,
        matrix.scales,
        x if gated is None else gated,
        output,
        words.stride(0),
        0 if gated is None else gated.stride(0),
        num_rows,
        matrix.num_tiles,
        matrix.num_blocks,
        matrix.num_inputs,
        IS_GATED=matrix.is_gated,
        HAS_GATED_INPUT=gated is not None,
        SCALE_DTYPE=getattr(gl, "float16" if matrix.num_levels else matrix.format.scales.dtype),
        **constants_of(matrix, tuning, rows),
        **launch_options(x.device),
    )
    return output
