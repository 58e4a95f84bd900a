"""Launches the kernel that reads a matrix of eight bits through a ring of tiles."""

import torch
import triton
from torch import Tensor

from facet.kernels.arrivals import counters_on
from facet.kernels.dependent_launch import launch_options
from facet.kernels.quantized.eight_bits.config import Ring
from facet.kernels.quantized.eight_bits.ring_kernel import ring_kernel
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.rounding import row_codes
from facet.kernels.rounded_rows import NO_CODES, MeasuredRows, RoundedRows

# The outputs, rows and warps of a program, as the kernel has them.
_BLOCK_OUT, _ROWS, _NUM_WARPS = 64, 8, 4


def can_run(x: RoundedRows | MeasuredRows, matrix: QuantizedMatrix) -> bool:
    """Whether both sides have the same codes, and rows begin where 16 bytes can be copied at once. Of what is to be
    rounded, one row."""
    codes = matrix.codes
    copied = (x.codes, codes) if isinstance(x, RoundedRows) else (codes,)
    aligned = all(tensor.data_ptr() % 16 == 0 and tensor.shape[1] % 16 == 0 for tensor in copied)
    fits = x.codes.dtype == codes.dtype if isinstance(x, RoundedRows) else x.values.shape[0] == 1
    return aligned and fits and codes.stride(0) % 16 == 0


def linear(x: RoundedRows | MeasuredRows, matrix: QuantizedMatrix, ring: Ring) -> Tensor:
    return _run(x, matrix, None, ring)


def geglu_linear(x: RoundedRows, matrix: QuantizedMatrix, ring: Ring) -> Tensor:
    return _run(x, matrix, None, ring, is_gated=True)


def measured_geglu_linear(x: RoundedRows, matrix: QuantizedMatrix, ring: Ring) -> MeasuredRows:
    """Like `geglu_linear`, with the largest magnitude of every program's columns, for whoever rounds the rows."""
    sizes = (x.codes.shape[0], triton.cdiv(matrix.num_rows // 2, _BLOCK_OUT // 2))
    magnitudes = torch.empty(sizes, dtype=torch.float32, device=matrix.codes.device)
    return MeasuredRows(_run(x, matrix, None, ring, is_gated=True, magnitudes=magnitudes), magnitudes)


def gated_input_linear(
    x: RoundedRows | MeasuredRows, matrix: QuantizedMatrix, per_layer_input: Tensor, ring: Ring
) -> Tensor:
    return _run(x, matrix, per_layer_input, ring)


def _run(
    x: RoundedRows | MeasuredRows,
    matrix: QuantizedMatrix,
    gated: Tensor | None,
    ring: Ring,
    *,
    is_gated: bool = False,
    magnitudes: Tensor | None = None,
) -> Tensor:
    inputs, codes, scales = x[0], matrix.codes, matrix.scales
    num_rows, num_in = inputs.shape
    row_scales, num_magnitudes, constants = x[1], 0, NO_CODES
    if isinstance(x, MeasuredRows):
        assert num_rows == 1, "of several rows, another kernel makes codes"
        row_scales, num_magnitudes = x.magnitudes.contiguous(), x.magnitudes.shape[1]
        constants = row_codes(matrix.format).constants
    assert codes.stride(1) == 1, "the codes of a row are contiguous"
    if inputs.stride(1) != 1 or inputs.stride(0) % 16 != 0:
        inputs = inputs.contiguous()
    if gated is not None and gated.stride(1) != 1:
        gated = gated.contiguous()
    is_integer = codes.dtype == torch.int8
    num_out, out_per_program = matrix.num_rows, _BLOCK_OUT
    if is_gated:
        num_out, out_per_program = num_out // 2, out_per_program // 2
    output = torch.empty(num_rows, num_out, dtype=x.dtype, device=codes.device)
    num_tiles = triton.cdiv(num_rows, _ROWS) * triton.cdiv(num_out, out_per_program)
    partial_sums = output
    if ring.shares > 1:
        sizes = (num_tiles, ring.shares, _BLOCK_OUT, _ROWS)
        partial_sums = torch.empty(sizes, dtype=torch.int32 if is_integer else torch.float32, device=codes.device)
    ring_kernel[(num_tiles * ring.shares,)](
        inputs,
        row_scales,
        codes,
        scales,
        output if gated is None else gated,
        output,
        magnitudes,
        inputs.stride(0),
        codes.stride(0),
        scales.stride(0),
        0 if gated is None else gated.stride(0),
        num_rows,
        num_out,
        partial_sums,
        counters_on(codes.device, num_tiles) if ring.shares > 1 else scales,
        NUM_IN=num_in,
        NUM_MAGNITUDES=num_magnitudes,
        **constants,
        IS_INTEGER=is_integer,
        IS_GATED=is_gated,
        HAS_GATED_INPUT=gated is not None,
        SHARES=ring.shares,
        BLOCK_IN=ring.block_in,
        STAGES=ring.num_stages,
        num_warps=_NUM_WARPS,
        **launch_options(codes.device),
    )
    return output
