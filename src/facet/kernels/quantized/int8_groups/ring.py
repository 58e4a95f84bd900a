"""Launches the kernel that brings few rows' codes through rings."""

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.quantized.int8_groups.language import gl
from facet.kernels.quantized.int8_groups.ring_kernel import ring_kernel
from facet.kernels.quantized.int8_groups.shuffled import TILE_OUT, ShuffledInt8
from facet.kernels.quantized.int8_groups.tuning import MAX_RING_ROWS, Ring, constants_of_ring, ring_of


def can_run(x: Tensor, matrix: ShuffledInt8) -> bool:
    """Whether there are few rows, and codes that begin where 16 bytes can be copied at once."""
    return 0 < x.shape[0] <= MAX_RING_ROWS and matrix.codes.data_ptr() % 16 == 0


def linear(x: Tensor, matrix: ShuffledInt8, ring: Ring | None = None) -> Tensor:
    assert not matrix.is_gated, "gates and ups are interleaved for geglu_linear alone"
    return _run(x, matrix, None, ring)


def geglu_linear(x: Tensor, matrix: ShuffledInt8, ring: Ring | None = None) -> Tensor:
    assert matrix.is_gated, "gates and ups have to be interleaved"
    return _run(x, matrix, None, ring)


def gated_input_linear(x: Tensor, matrix: ShuffledInt8, per_layer_input: Tensor, ring: Ring | None = None) -> Tensor:
    assert not matrix.is_gated, "gates and ups are interleaved for geglu_linear alone"
    return _run(x, matrix, per_layer_input, ring)


def _run(x: Tensor, matrix: ShuffledInt8, gated: Tensor | None, ring: Ring | None) -> Tensor:
    assert x.dtype == torch.bfloat16, "pairs of bfloat16 numbers are what a word has"
    assert can_run(x, matrix), "such products go another way"
    if x.stride(1) != 1 or x.stride(0) % 8 != 0:
        x = x.contiguous()
    if gated is not None and gated.stride(1) != 1:
        gated = gated.contiguous()
    ring = ring or ring_of(matrix.num_tiles, matrix.num_blocks, matrix.num_levels, x.shape[0])
    assert x.shape[0] <= 8 * ring.row_tiles, "a program takes all rows"
    width = TILE_OUT // 2 if matrix.is_gated else TILE_OUT
    output = torch.empty(x.shape[0], matrix.num_tiles * width, dtype=x.dtype, device=x.device)
    words = x.view(torch.int32)
    ring_kernel[(triton.cdiv(matrix.num_tiles, ring.tiles * ring.num_out_warps),)](
        words,
        matrix.codes,
        matrix.scales,
        x if gated is None else gated,
        output,
        words.stride(0),
        0 if gated is None else gated.stride(0),
        x.shape[0],
        matrix.num_tiles,
        matrix.num_blocks,
        matrix.num_inputs,
        IS_GATED=matrix.is_gated,
        HAS_GATED_INPUT=gated is not None,
        SCALE_DTYPE=getattr(gl, "float16" if matrix.num_levels else matrix.format.scales.dtype),
        **constants_of_ring(matrix, ring),
        **launch_options(x.device),
    )
    return output
