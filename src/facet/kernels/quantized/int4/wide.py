"""Launches the kernel for some tens of rows."""

import torch
import triton
from torch import Tensor

from facet.kernels.arrivals import counters_on
from facet.kernels.dependent_launch import launch_options
from facet.kernels.quantized.int4.language import gl
from facet.kernels.quantized.int4.shuffled import BLOCK_IN, TILE_OUT, ShuffledInt4
from facet.kernels.quantized.int4.tuning import WideTuning, choose_wide_tuning
from facet.kernels.quantized.int4.wide_kernel import wide_kernel


def linear(x: Tensor, matrix: ShuffledInt4, tuning: WideTuning | None = None) -> Tensor:
    assert not matrix.is_gated, "gates and ups are interleaved for geglu_linear alone"
    return _run(x, matrix, None, tuning)


def geglu_linear(x: Tensor, matrix: ShuffledInt4, tuning: WideTuning | None = None) -> Tensor:
    assert matrix.is_gated, "gates and ups have to be interleaved"
    return _run(x, matrix, None, tuning)


def gated_input_linear(
    x: Tensor, matrix: ShuffledInt4, per_layer_input: Tensor, tuning: WideTuning | None = None
) -> Tensor:
    assert not matrix.is_gated, "gates and ups are interleaved for geglu_linear alone"
    return _run(x, matrix, per_layer_input, tuning)


def _run(x: Tensor, matrix: ShuffledInt4, gated: Tensor | None, tuning: WideTuning | None) -> Tensor:
    assert x.dtype == torch.bfloat16, "tensor cores multiply bfloat16 numbers here"
    num_rows = x.shape[0]
    tuning = tuning or choose_wide_tuning(matrix.num_tiles, matrix.num_blocks, num_rows)
    if x.stride(1) != 1 or x.stride(0) % 2 != 0 or x.data_ptr() % 4 != 0:  # pairs are copied as words
        x = x.clone(memory_format=torch.contiguous_format)
    if gated is not None and gated.stride(1) != 1:
        gated = gated.contiguous()
    width = TILE_OUT // 2 if matrix.is_gated else TILE_OUT
    output = torch.empty(num_rows, matrix.num_tiles * width, dtype=x.dtype, device=x.device)
    num_row_groups = triton.cdiv(num_rows, tuning.rows)
    num_places = num_row_groups * triton.cdiv(matrix.num_tiles, tuning.tiles)
    counters = counters_on(x.device, num_places) if tuning.shares > 1 else matrix.codes
    partial_sums = output
    if tuning.shares > 1:
        sizes = (num_places, tuning.shares, TILE_OUT * tuning.tiles, tuning.rows)
        partial_sums = torch.empty(sizes, dtype=torch.float32, device=x.device)
    words = x.view(torch.int32)
    wide_kernel[(num_places * tuning.shares,)](
        words,
        *matrix.words(),
        matrix.factors,
        x if gated is None else gated,
        output,
        partial_sums,
        counters,
        words.stride(0),
        0 if gated is None else gated.stride(0),
        num_rows,
        matrix.num_tiles,
        matrix.num_blocks,
        matrix.num_inputs,
        IS_GATED=matrix.is_gated,
        HAS_GATED_INPUT=gated is not None,
        SCALE_DTYPE=getattr(gl, matrix.scale_type),
        HAS_ZEROS=matrix.zeros is not None,
        GROUPS=matrix.scales.shape[-2],
        ROWS=tuning.rows,
        TILES=tuning.tiles,
        SHARES=tuning.shares,
        STAGES=tuning.stages,
        HAS_TAIL=matrix.num_inputs % BLOCK_IN != 0,
        num_warps=tuning.tiles,
        **launch_options(x.device),
    )
    return output
