"""Maps each row of a step's logits to its seat.

A request keeps one *seat* (0 .. num_seats - 1) for as long as it runs. A step's logits hold rows of some seats in some
order; a *place* is an index into those logits. Features keep their state by seat and work by place.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from facet.sampling_params import SamplingParams

MAX_PART_ELEMENTS = 16 * 262_144
_CPU_PART_ELEMENTS = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request takes a seat: for the first time, or again after it was preempted."""

    seat: int
    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]  # what it had before a preemption
    eos_token_ids: Collection[int]


@dataclass(frozen=True, slots=True, eq=False)
class BatchSeats:
    """The seats of steps with the same requests. Compared by identity: features remember what they prepared for
    this very value, and it is never used again once any request has come or gone."""

    seats: tuple[int, ...]
    device: torch.device

    def __len__(self) -> int:
        return len(self.seats)


def row_slices(num_rows: int, vocab_size: int, device: torch.device) -> Iterator[slice]:
    """Cuts rows of logits into parts whose temporary copies stay small (and, on a CPU, in its cache)."""
    num_elements = MAX_PART_ELEMENTS if device.type == "cuda" else _CPU_PART_ELEMENTS
    step = max(1, num_elements // vocab_size)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))
