"""The definition of the sums over streams."""

from collections.abc import Sequence

import torch
from torch import Tensor


def mix_streams(coefficients: Tensor, streams: Tensor) -> Tensor:
    """Every stream's share of all of them: [rows, out, in] and [in, rows, hidden] make [out, rows, hidden]."""
    return torch.einsum("roi,ird->ord", coefficients, streams)


def mean_of_streams(streams: Sequence[Tensor]) -> Tensor:
    """Several streams, [rows, hidden] each, as one."""
    return torch.stack(list(streams)).mean(dim=0)
