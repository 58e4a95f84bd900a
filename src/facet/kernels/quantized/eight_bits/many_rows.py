"""Launches the kernel for many rows of fp8 codes on Hopper GPUs."""

import torch
import triton
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.gluon_names import TensorDescriptor, gl
from facet.kernels.gluon_parts import layout_of
from facet.kernels.hopper import num_multiprocessors
from facet.kernels.quantized.eight_bits.config import Config
from facet.kernels.quantized.eight_bits.many_rows_kernel import LAUNCH, TILE_OUT, TILE_ROWS, many_rows_kernel
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.rounded_rows import MeasuredRows, RoundedRows

# Stages that shared memory holds beside results of so many bytes each.
_STAGES = {2: 6, 4: 5}
_BLOCK = (64, 128)  # half a tile's rows, and the inputs of a stage


def can_run(x: RoundedRows, matrix: QuantizedMatrix) -> bool:
    """Whether both sides are fp8 codes, whose rows begin where descriptors take them."""
    return x.dtype.itemsize in _STAGES and all(
        codes.dtype == torch.float8_e4m3fn
        and codes.data_ptr() % 16 == codes.stride(0) % 16 == 0
        and codes.stride(1) == 1
        for codes in (x.codes, matrix.codes)
    )


def linear(x: RoundedRows, matrix: QuantizedMatrix, config: Config) -> Tensor:
    return _run(x, matrix, None, config)


def geglu_linear(x: RoundedRows, matrix: QuantizedMatrix, config: Config) -> Tensor:
    return _run(x, matrix, None, config, is_gated=True)


def measured_geglu_linear(x: RoundedRows, matrix: QuantizedMatrix, config: Config) -> MeasuredRows:
    """Like `geglu_linear`; its numbers are the magnitudes, too: whoever rounds the rows looks at all of them."""
    rows = geglu_linear(x, matrix, config)
    return MeasuredRows(rows, rows)


def gated_input_linear(x: RoundedRows, matrix: QuantizedMatrix, per_layer_input: Tensor, config: Config) -> Tensor:
    return _run(x, matrix, per_layer_input, config)


def _run(
    x: RoundedRows, matrix: QuantizedMatrix, gated: Tensor | None, config: Config, *, is_gated: bool = False
) -> Tensor:
    codes, scales = matrix.codes, matrix.scales
    num_rows, num_in = x.codes.shape
    num_out, columns_per_tile = (matrix.num_rows // 2, TILE_OUT // 2) if is_gated else (matrix.num_rows, TILE_OUT)
    if gated is not None and gated.stride(1) != 1:
        gated = gated.contiguous()
    output = torch.empty(num_rows, num_out, dtype=x.dtype, device=codes.device)
    num_turns = triton.cdiv(num_rows, TILE_ROWS) * triton.cdiv(num_out, columns_per_tile)
    many_rows_kernel[(min(num_turns, num_multiprocessors(codes.device)),)](
        _tiles(x.codes),
        x.scales,
        _tiles(codes),
        scales,
        output if gated is None else gated,
        output,
        num_rows,
        num_out,
        scales.stride(0),
        0 if gated is None else gated.stride(0),
        NUM_IN=num_in,
        BLOCK_IN=config.block_in,
        SHARES=config.shares,
        STAGES=_STAGES[x.dtype.itemsize],
        IS_GATED=is_gated,
        HAS_GATED_INPUT=gated is not None,
        **LAUNCH,
        **launch_options(codes.device),
    )
    return output


def _tiles(codes: Tensor) -> TensorDescriptor:
    """The codes as copies take them."""
    return TensorDescriptor.from_tensor(codes, list(_BLOCK), layout_of(_BLOCK, gl.float8e4nv))
