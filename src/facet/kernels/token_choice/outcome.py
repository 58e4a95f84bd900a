"""The settings and the result of choosing tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Fields of the one buffer begin at multiples of this, so that kernels see the same alignment for any batch.
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class ChoiceSettings:
    """The settings of a batch's rows, and which kinds of rows there are (known on the host: unused work is not
    launched).

      greedy  top_k is 1
      narrow  top_k up to `NARROW_LIMIT` and below the vocabulary's size
      open    top_k is the vocabulary's size: everyone races whom top_p and min_p leave
    """

    by_row: Tensor  # [rows, 4] float64: temperature, top_k, top_p, min_p; a greedy row's are 1, 1, 1, 0
    is_greedy: bool  # every row
    largest_narrow_k: int  # 1 where no row is narrow
    has_min_p: bool  # an open row with min_p and without top_p
    has_top_p: bool  # an open row with top_p


@dataclass(frozen=True, slots=True)
class Outcome:
    """One token per row and whether it is one."""

    storage: Tensor | None  # uint8; holds the other three, so that one copy moves them. None: they lie apart
    token_ids: Tensor  # [rows] int64; 0 where either flag is false
    is_finite: Tensor  # [rows] bool: the model's logits could be used
    has_choice: Tensor  # [rows] bool: masks left at least one token

    @staticmethod
    def empty(num_rows: int, device: torch.device) -> "Outcome":
        num_bytes = 10 * _padded(num_rows)
        return Outcome.within(torch.empty(num_bytes, dtype=torch.uint8, device=device), num_rows)

    @staticmethod
    def within(storage: Tensor, num_rows: int) -> "Outcome":
        """The same fields of a copy of the storage."""
        size = _padded(num_rows)
        return Outcome(
            storage,
            storage[: 8 * size].view(torch.int64)[:num_rows],
            storage[8 * size : 8 * size + num_rows].view(torch.bool),
            storage[9 * size : 9 * size + num_rows].view(torch.bool),
        )


def _padded(num_rows: int) -> int:
    return -(-num_rows // _ALIGNMENT) * _ALIGNMENT
