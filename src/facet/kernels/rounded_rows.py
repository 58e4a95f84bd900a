"""Rows rounded to eight bits: what products take instead of activations."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_FP8 = 448.0
# Half of the codes' range, as the scheme has it: the largest input may fall on -128 but not on 127.
LARGEST_INT8 = 127.5


class RoundedRows(NamedTuple):
    """Numbers codes * scales, standing for activations of `dtype`."""

    codes: Tensor  # [rows, inputs], int8 or fp8
    scales: Tensor  # float32 [rows, 1]
    dtype: torch.dtype


class RowCodes(NamedTuple):
    """How rows are rounded."""

    dtype: torch.dtype
    divisor: float  # a row's scale is its largest magnitude divided by this
    least: float
    greatest: float

    @property
    def constants(self) -> Mapping[str, float]:
        """As kernels take them."""
        return {"DIVISOR": self.divisor, "LEAST": self.least, "GREATEST": self.greatest}

    def empty(self, x: Tensor) -> RoundedRows:
        """Memory for the rows of x."""
        codes = torch.empty(x.shape, dtype=self.dtype, device=x.device)
        return RoundedRows(codes, torch.empty(x.shape[0], 1, device=x.device), x.dtype)


INT8_CODES = RowCodes(torch.int8, LARGEST_INT8, -128.0, 127.0)
FP8_CODES = RowCodes(torch.float8_e4m3fn, LARGEST_FP8, -LARGEST_FP8, LARGEST_FP8)
