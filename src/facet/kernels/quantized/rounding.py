"""Rounds the inputs (and outputs) of products as a checkpoint asks: every row by itself, whatever its company."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.rounded_rows import FP8_CODES, INT8_CODES, LARGEST_FP8, LARGEST_INT8, RowCodes
from facet.matrix_format import ROUNDING_GROUP, MatrixFormat

_SMALLEST = torch.finfo(torch.float32).tiny


class Int8Rows(NamedTuple):
    """Rows of int8 codes, each with its scale [rows, 1]."""

    codes: Tensor
    scales: Tensor


def row_codes(format: MatrixFormat) -> RowCodes:
    """How this format rounds inputs, if it does so row by row."""
    assert format.rounding in ("int8_token", "fp8_token"), "rows are rounded by their own scales"
    return INT8_CODES if format.rounding == "int8_token" else FP8_CODES


def to_int8(x: Tensor, scale: Tensor | None = None) -> Int8Rows:
    """Rounds rows by `scale`, or each row by its own, from its largest magnitude. Halves go to the even code."""
    scales = x.abs().amax(-1, keepdim=True).float() / LARGEST_INT8 if scale is None else scale.expand(*x.shape[:-1], 1)
    return Int8Rows((x.float() / _divisors(scales)).round_().clamp_(-128, 127).to(torch.int8), scales)


def round_inputs(x: Tensor, matrix: QuantizedMatrix) -> Tensor:
    """What the product takes instead of x, as numbers of x's type."""
    rounding = matrix.format.rounding
    if rounding is None:
        return x
    if rounding == "int8_token":
        rounded = _numbers(to_int8(x))
    elif rounding == "fp8_token":
        rounded = _round_fp8(x.float(), x.float().abs().amax(-1, keepdim=True) / LARGEST_FP8)
    elif rounding == "fp8_group":
        rounded = _round_groups(x.float())
    else:
        assert matrix.input_scale is not None, "static scales are in the checkpoint"
        scale = matrix.input_scale
        rounded = _numbers(to_int8(x, scale)) if rounding == "int8_static" else _round_fp8(x.float(), scale)
        rounded = torch.where(scale > 0, rounded, x.float())
    return rounded.to(x.dtype)


def round_outputs(y: Tensor, matrix: QuantizedMatrix) -> Tensor:
    if not matrix.format.rounds_outputs:
        return y
    assert matrix.output_scale is not None, "scales of outputs are in the checkpoint"
    return torch.where(matrix.output_scale > 0, _numbers(to_int8(y, matrix.output_scale)).to(y.dtype), y)


def _numbers(rows: Int8Rows) -> Tensor:
    return rows.codes.float() * rows.scales


def _round_fp8(x: Tensor, scales: Tensor) -> Tensor:
    codes = (x / _divisors(scales)).clamp_(-LARGEST_FP8, LARGEST_FP8).to(torch.float8_e4m3fn)
    return codes.float() * scales


def _round_groups(x: Tensor) -> Tensor:
    """Rounds each group of columns by a scale of its own; the last may be shorter."""
    num_columns = x.shape[-1]
    filled = functional.pad(x, (0, -num_columns % ROUNDING_GROUP)).view(*x.shape[:-1], -1, ROUNDING_GROUP)
    rounded = _round_fp8(filled, filled.abs().amax(-1, keepdim=True) / LARGEST_FP8)
    return rounded.flatten(-2)[..., :num_columns].contiguous()


def _divisors(scales: Tensor) -> Tensor:
    """A row of zeros has the scale 0, by which nothing can be divided. Every other row keeps its own."""
    return scales.clamp_min(_SMALLEST)
