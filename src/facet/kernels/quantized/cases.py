"""Formats, shapes and inputs on which products with quantized matrices are checked, and how close is close."""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.random_codes import fill_random
from facet.kernels.tolerance import Tolerance
from facet.matrix_format import MatrixFormat, ScaleFormat

FLOAT32 = Tolerance(absolute=2e-5, relative=2e-5, why="float32 sums of a few hundred products in another order")

ROW = ScaleFormat(dtype="float32", group=None)
_ROW16, _G32 = ScaleFormat(dtype="bfloat16", group=None), ScaleFormat(dtype="bfloat16", group=32)
_HALF_G32 = ScaleFormat(dtype="float16", group=32)
_K_COARSE = ScaleFormat(dtype="float16", group=256)

FORMATS: dict[str, MatrixFormat] = {
    "int4 groups": MatrixFormat(codes="int4", scales=_G32),
    "int4 rows": MatrixFormat(codes="int4", scales=_ROW16),
    "int4 reordered": MatrixFormat(codes="int4", scales=_G32, is_reordered=True),
    "uint4 zeros": MatrixFormat(codes="uint4", scales=_HALF_G32, has_zeros=True),
    "uint4 minimums": MatrixFormat(
        codes="uint4", scales=ScaleFormat(dtype="uint8", group=32), coarse_scales=_K_COARSE, has_minimums=True
    ),
    "fp4 coarse": MatrixFormat(codes="fp4", scales=ScaleFormat(dtype="float8_e4m3fn", group=16), coarse_scales=ROW),
    "fp4 powers": MatrixFormat(codes="fp4", scales=ScaleFormat(dtype="float8_e8m0fnu", group=32)),
    "int8 rows": MatrixFormat(codes="int8", scales=ROW),
    "int8 groups": MatrixFormat(codes="int8", scales=ScaleFormat(dtype="int8", group=16), coarse_scales=_K_COARSE),
    "int8 minimums": MatrixFormat(
        codes="int8", scales=ScaleFormat(dtype="uint8", group=32), coarse_scales=_K_COARSE, has_minimums=True
    ),
    "int8 token": MatrixFormat(codes="int8", scales=_ROW16, rounding="int8_token"),
    "int8 token zeros": MatrixFormat(codes="int8", scales=_ROW16, has_zeros=True, rounding="int8_token"),
    "int8 static": MatrixFormat(codes="int8", scales=_ROW16, rounding="int8_static", rounds_outputs=True),
    "fp8 rows": MatrixFormat(codes="fp8", scales=ROW),
    "fp8 token": MatrixFormat(codes="fp8", scales=ROW, rounding="fp8_token"),
    "fp8 blocks": MatrixFormat(codes="fp8", scales=ScaleFormat(dtype="float32", group=128), rounding="fp8_group"),
    "fp8 static": MatrixFormat(codes="fp8", scales=ROW, rounding="fp8_static"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A matrix of random codes, whose values are of order one over the root of its width."""

    format: MatrixFormat
    num_out: int = 96
    num_in: int = 512
    num_experts: int | None = None

    def matrix(self, device: str = "cpu", seed: int = 0) -> QuantizedMatrix:
        generator = torch.Generator(device).manual_seed(seed)
        stack = () if self.num_experts is None else (self.num_experts,)
        shape = (*stack, self.num_out, self.num_in)
        matrix = QuantizedMatrix.empty(self.format, shape, torch.device(device))
        fill_random(matrix, generator)
        return matrix

    def inputs(self, num_rows: int, dtype: torch.dtype, device: str = "cpu", seed: int = 1) -> Tensor:
        """The first row is zeros: its scale must not be divided by."""
        generator = torch.Generator(device).manual_seed(seed)
        x = torch.randn(num_rows, self.num_in, generator=generator, device=device).to(dtype)
        x[0] = 0
        return x
