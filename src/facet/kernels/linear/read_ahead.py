"""Which weight is read after which, so that memory is not idle while short kernels wait for each other: a product that
has asked for all of its own weight asks for the beginning of the next one's, which then comes from the second-level
cache."""

from typing import NamedTuple

import torch
from torch import Tensor

# Of the next weight. 0: nothing is asked for, as it is before this has been timed on a card.
NUM_BYTES = 0
# Smaller ones are on their way as soon as their kernel is placed.
_LEAST_BYTES = 4 << 20


def read_before(weight: Tensor, later: Tensor) -> None:
    """Says so, beside the numbers of the weight: slices of it do not know."""
    weight.read_ahead_of = later  # type: ignore[attr-defined]


class Ahead(NamedTuple):
    """What a kernel asks for: the first bytes of each row. None: it need not know how to ask."""

    later: Tensor | None
    stride: int
    num_rows: int
    num_bytes: int


def ahead_of(weight: Tensor) -> Ahead:
    if NUM_BYTES == 0:
        return Ahead(None, 0, 0, 0)
    later: Tensor | None = getattr(weight, "read_ahead_of", None)
    if later is None or not _can_ask(later):
        return Ahead(weight, 0, 0, 0)  # for nothing, by the same kernel
    num_columns = min(later.shape[1], NUM_BYTES // (2 * later.shape[0]) // 64 * 64)
    return Ahead(later, later.stride(0), later.shape[0] if num_columns else 0, 2 * num_columns)


def _can_ask(later: Tensor) -> bool:
    is_aligned = later.data_ptr() % 16 == 0 and later.stride(0) % 8 == 0
    is_large = later.numel() * later.element_size() >= _LEAST_BYTES
    return is_aligned and is_large and later.dtype == torch.bfloat16
