"""Maps each row of a step's logits to its seat.

A request keeps one *seat* (0 .. num_seats - 1) for as long as it runs. A step's logits hold rows of some seats in some
order; a *place* is an index into those logits. Features keep their state by seat and work by place.

A seat has one place, or, with drafts, a run of them: what is sampled there holds as far as the drafts are right.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.sampling_params import SamplingParams
from facet.thoughts import ThoughtTokens
from facet.transfer import array_on_device, arrays_on_device

NO_DRAFT = -1
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
    thought: ThoughtTokens | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BatchSeats:
    """The seats of steps with the same requests. Compared by identity: features remember what they prepared for
    this very value, and it is never used again once any request has come or gone."""

    seats: tuple[int, ...]  # by place
    device: torch.device
    runs: "Runs | None" = None  # None: every seat has one place
    held: range | None = None  # the ids of the logits' columns, where ranks share the vocabulary; None: all

    def __len__(self) -> int:
        return len(self.seats)


class FurtherOn(NamedTuple):
    """How many tokens the seats of places are further on than the host knows."""

    num_tokens: Tensor  # [places] int32
    most: int  # that any of them can be


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The places of seats with drafts: a run of one more than there are drafts, each place behind one draft more.

    seats        3 3 3 | 5 | 2 2
    offsets      0 1 2 | 0 | 0 1      how many of the run's drafts stand in front of the place
    following    7 4 - | - | 9 -      the draft that stands behind it
    """

    layout: "RunLayout"
    following: Tensor  # [places] int64; NO_DRAFT at the end of a run
    further_on: FurtherOn | None = None

    @property
    def seats(self) -> tuple[int, ...]:
        return self.layout.seats

    @property
    def offsets(self) -> tuple[int, ...]:
        return self.layout.offsets

    @property
    def places(self) -> Tensor:
        return self.layout.places

    @property
    def run_of(self) -> Tensor:
        return self.layout.run_of

    @property
    def longest(self) -> int:
        return self.places.shape[1]

    def at_offset(self, offset: int) -> list[int]:
        """The places behind so many drafts."""
        return [place for place, own in enumerate(self.offsets) if own == offset]

    def has_next(self, place: int) -> bool:
        """Whether the place behind belongs to the same run."""
        return place + 1 < len(self.offsets) and self.offsets[place + 1] > 0

    def num_emitted(self, token_ids: Tensor, is_token: Tensor) -> Tensor:
        """[runs] int64: the tokens up to the first that is not the draft behind it. There is always one."""
        agrees = (token_ids == self.following) & is_token
        return 1 + agrees[self.places[:, :-1]].to(torch.int64).cumprod(1).sum(1)


@dataclass(frozen=True, slots=True, eq=False)
class RunLayout:
    """What runs have in common in all steps in which the same seats have as many drafts each."""

    seats: tuple[int, ...]  # of each run
    seats_of_places: tuple[int, ...]
    offsets: tuple[int, ...]  # by place
    drafted: NDArray[np.int64]  # the places that have a draft behind them
    places: Tensor  # [runs, longest] int64; a short run is filled up with its last place
    run_of: Tensor  # [places] int64
    device_drafted: Tensor  # [drafts] int64

    @classmethod
    def make(cls, seats: tuple[int, ...], num_drafts: NDArray[np.integer], device: torch.device) -> "RunLayout":
        lengths = 1 + num_drafts.astype(np.int64)
        run_of = np.repeat(np.arange(len(lengths)), lengths)
        firsts = np.cumsum(lengths) - lengths
        offsets = np.arange(len(run_of)) - firsts[run_of]
        places = firsts[:, None] + np.minimum(np.arange(lengths.max()), num_drafts[:, None])
        drafted = np.flatnonzero(offsets < num_drafts[run_of])
        return cls(
            seats,
            tuple(np.array(seats)[run_of].tolist()),
            tuple(offsets.tolist()),
            drafted,
            *arrays_on_device((places, run_of, drafted), device),
        )

    def runs(self, drafts: NDArray[np.int64] | Tensor, further_on: FurtherOn | None = None) -> Runs:
        """`drafts`: of all runs, one after the other."""
        if isinstance(drafts, Tensor):
            following = torch.full_like(self.run_of, NO_DRAFT)
            following[self.device_drafted] = drafts
            return Runs(self, following, further_on)
        host = np.full(len(self.offsets), NO_DRAFT, np.int64)
        host[self.drafted] = drafts
        return Runs(self, array_on_device(host, self.run_of.device), further_on)


def row_slices(num_rows: int, vocab_size: int, device: torch.device) -> Iterator[slice]:
    """Cuts rows of logits into parts whose temporary copies stay small (and, on a CPU, in its cache)."""
    num_elements = MAX_PART_ELEMENTS if device.type == "cuda" else _CPU_PART_ELEMENTS
    step = max(1, num_elements // vocab_size)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))
