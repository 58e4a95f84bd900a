"""The end of a step as the device knows it before the host does: how many drafts were right, and what is guessed next.

A step that is ahead begins there. Its plan counts the least that can hold, and everything that depends on the rest is
read from here without the host: the tokens of its rows, their positions, and the places of their random numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from facet.runner.batch import ranges
from facet.runner.draft_ahead import DraftsInFlight
from facet.sampling import FurtherOn
from facet.step import StepPlan
from facet.transfer import arrays_on_device


class Tail(NamedTuple):
    """The end of a step behind which a drafter has guessed."""

    seats: tuple[int, ...]
    num_accepted: Tensor | None  # [seats] int32: drafts that were right; None: there were none
    guesses: Tensor  # [seats, drafts] int64
    copy: DraftsInFlight  # the guesses, for the host


@dataclass(frozen=True, slots=True)
class UnseenDrafts:
    """The drafts of a step that is ahead, and how far on it begins."""

    token_ids: Tensor  # [drafts] int64: of all entries, one after the other
    num_more: Tensor | None  # [entries] int32: tokens that hold beyond those that the plan counts; None: none do
    further_on: FurtherOn | None  # the same by rows
    _copy: DraftsInFlight
    _sources: tuple[tuple[int, int], ...]  # of each entry: where its guess is, and how much of it was taken

    def wait(self) -> list[int]:
        """The drafts on the host."""
        guesses = self._copy.wait()
        return list(chain.from_iterable(guesses[source][:count] for source, count in self._sources))


class _Indices(NamedTuple):
    """Where the entries of a step find themselves in the one before, which is the same while the entries are."""

    entries: tuple[object, ...]  # what it was made of
    sources: tuple[tuple[int, int], ...]
    of_entries: Tensor
    of_rows: Tensor
    of_drafts: Tensor  # into all guesses, one after the other


class TailReader:
    """Begins steps at the tail of the one before."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last: _Indices | None = None

    def unseen(self, plan: StepPlan, tail: Tail) -> UnseenDrafts:
        indices = self._indices(plan, tail.seats, tail.guesses.shape[1])
        num_more = further_on = None
        if tail.num_accepted is not None:
            num_more = tail.num_accepted[indices.of_entries]
            further_on = FurtherOn(tail.num_accepted[indices.of_rows], most=int(plan.num_undecided.max()))
        return UnseenDrafts(
            token_ids=tail.guesses.reshape(-1)[indices.of_drafts],
            num_more=num_more,
            further_on=further_on,
            _copy=tail.copy,
            _sources=indices.sources,
        )

    def _indices(self, plan: StepPlan, seats: Sequence[int], num_guesses: int) -> _Indices:
        entries = (seats, num_guesses, plan.seats.tobytes(), plan.num_drafts.tobytes())
        if self._last is None or self._last.entries != entries:
            place_of = {seat: place for place, seat in enumerate(seats)}
            places = np.array([place_of[seat] for seat in plan.seats.tolist()], np.int32)
            arrays = (
                places,
                np.repeat(places, plan.num_scheduled),
                ranges(num_guesses * places, plan.num_drafts),
            )
            on_device = arrays_on_device([array.astype(np.int64) for array in arrays], self._device)
            sources = tuple(zip(places.tolist(), plan.num_drafts.tolist(), strict=True))
            self._last = _Indices(entries, sources, *on_device)
        return self._last
