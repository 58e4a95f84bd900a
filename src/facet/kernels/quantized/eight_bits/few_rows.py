"""Launches the kernel for few rows that are not rounded."""

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.quantized.eight_bits.config import Tiles
from facet.kernels.quantized.eight_bits.few_rows_kernel import few_rows_kernel
from facet.kernels.quantized.matrix import QuantizedMatrix

# The outputs and rows of a tile, as the kernel has them.
_TILE_OUT, _ROWS = 16, 8


def can_run(x: Tensor, matrix: QuantizedMatrix) -> bool:
    """Whether words hold pairs of bfloat16, and rows of codes begin where 16 bytes can be loaded at once."""
    codes = matrix.codes
    is_aligned = codes.data_ptr() % 16 == 0 and codes.stride(0) % 16 == 0 and codes.stride(1) == 1
    return x.dtype == torch.bfloat16 and is_aligned and codes.shape[1] % 16 == 0


def linear(x: Tensor, matrix: QuantizedMatrix, tiles: Tiles) -> Tensor:
    (num_rows, num_in), num_out = x.shape, matrix.num_rows
    if x.stride(1) != 1 or x.stride(0) % 8 != 0 or x.data_ptr() % 16 != 0:
        x = x.contiguous()
    codes, scales = matrix.codes.view(torch.int32), matrix.scales
    output = torch.empty(num_rows, num_out, dtype=x.dtype, device=codes.device)
    words = x.view(torch.int32)
    out_per_program = _TILE_OUT * tiles.tiles * tiles.num_warps
    few_rows_kernel[(triton.cdiv(num_rows, _ROWS) * triton.cdiv(num_out, out_per_program),)](
        words,
        codes,
        scales,
        output,
        words.stride(0),
        codes.stride(0),
        scales.stride(0),
        num_rows,
        num_out,
        NUM_IN=num_in,
        IS_INTEGER=matrix.codes.dtype == torch.int8,
        TILES=tiles.tiles,
        NUM_WARPS=tiles.num_warps,
        num_warps=tiles.num_warps,
        **launch_options(codes.device),
    )
    return output
