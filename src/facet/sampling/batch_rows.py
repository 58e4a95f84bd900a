"""Which persistent row each row of a step's logits belongs to, and how small host arrays reach the device.

A request keeps one *row* (0 .. num_rows - 1) for as long as it runs. A step's logits hold some of these rows
in some order; a *place* is an index into those logits. Features keep their state by row and work by place.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from facet.sampling_params import SamplingParams

MAX_PART_ELEMENTS = 16 * 262_144
_CPU_PART_ELEMENTS = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request takes a row: for the first time, or again after it was preempted."""

    row: int
    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]  # what it had before a preemption
    eos_token_ids: Collection[int]


@dataclass(frozen=True, slots=True, eq=False)
class BatchRows:
    """The rows of steps with the same requests. Compared by identity: features remember what they prepared for
    this very value, and it is never used again once any request has come or gone."""

    rows: tuple[int, ...]
    device: torch.device

    def __len__(self) -> int:
        return len(self.rows)


def to_device(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A copy of `values` on the device, without waiting for it.

    The pinned buffer belongs to torch's host allocator, which reuses it only after the copy has happened.
    """
    tensor = torch.from_numpy(np.array(values, order="C"))  # np.array copies: the caller may change its own
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def places_tensor(places: Sequence[int], device: torch.device) -> Tensor:
    return to_device(np.asarray(places, dtype=np.int64), device)


def row_slices(num_rows: int, vocab_size: int, device: torch.device) -> Iterator[slice]:
    """Cuts rows of logits into parts whose temporary copies stay small (and, on a CPU, in its cache)."""
    num_elements = MAX_PART_ELEMENTS if device.type == "cuda" else _CPU_PART_ELEMENTS
    step = max(1, num_elements // vocab_size)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))
