"""Rows rounded to eight bits, or ready to be: what products take instead of activations."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

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


class MeasuredRows(NamedTuple):
    """Activations that are to be rounded, with what must be known of each row before its first is."""

    values: Tensor  # [rows, inputs]
    magnitudes: Tensor  # [rows, some]: the greatest is that of all values of the row. They may be the values

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype


# What a product takes.
Rows: TypeAlias = Tensor | RoundedRows | MeasuredRows


def tensor_of(x: Rows) -> Tensor:
    """[rows, inputs]: numbers or codes."""
    return x if isinstance(x, Tensor) else x[0]


class RowCodes(NamedTuple):
    """How rows are rounded."""

    dtype: torch.dtype
    divisor: float  # a row's scale is its largest magnitude divided by this
    least: float
    greatest: float

    @property
    def constants(self) -> Mapping[str, float]:
        """The divisor and the bounds, as kernels take them."""
        return {"DIVISOR": self.divisor, "LEAST": self.least, "GREATEST": self.greatest}

    def empty(self, x: Tensor) -> RoundedRows:
        """Memory for the rows of x."""
        codes = torch.empty(x.shape, dtype=self.dtype, device=x.device)
        return RoundedRows(codes, torch.empty(x.shape[0], 1, device=x.device), x.dtype)


# What kernels take for rows that are not rounded.
NO_CODES: Mapping[str, float] = MappingProxyType({"DIVISOR": 1.0, "LEAST": 0.0, "GREATEST": 0.0})
INT8_CODES = RowCodes(torch.int8, LARGEST_INT8, -128.0, 127.0)
FP8_CODES = RowCodes(torch.float8_e4m3fn, LARGEST_FP8, -LARGEST_FP8, LARGEST_FP8)
