"""Drafts: tokens that a step computes before they are known to be right.

A *drafter* guesses how a request goes on. A step computes the guesses behind the request's last token, samples at every
position and accepts the longest run that agrees with what was sampled; one token more is always right. To the books a
draft is nothing until it is accepted: it counts neither as a token nor as computed, so no window moves on and no prefix
is kept because of it. The only thing to give back is blocks.

A request is drafted for when all its tokens are known and all but the last computed. With drafts in flight it waits:
what it computes next depends on how many were right. Where drafts are allowed at all (`Limits.max_num_drafts`), every
request waits for its sampled tokens, since only known ones can be continued.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from facet.scheduler.running_seats import RunningSeats

# By request number.
Drafts = Mapping[int, Sequence[int]]
NO_DRAFTS: Drafts = MappingProxyType({})


class Draftable(NamedTuple):
    """A request that may be drafted for now."""

    request_number: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    max_num_drafts: int


class Drafter(Protocol):
    max_num_drafts: int  # for one request in one step

    def propose(self, requests: Sequence[Draftable]) -> Drafts:
        """Guesses for some of the requests. Anything may be guessed: a wrong guess costs time, never an answer."""


def allot_drafts(
    running: RunningSeats,
    seats: NDArray[np.int64],
    num_scheduled: NDArray[np.int64],
    drafts: Drafts,
    *,
    max_num_drafts: int,
    budget: int,
) -> NDArray[np.int64]:
    """How many drafts each seat gets, out of what known tokens leave of the budget; first in line first."""
    num_drafts = np.zeros(len(seats), np.int64)
    room = np.minimum(running.room_for_drafts(seats), max_num_drafts)
    for index in np.flatnonzero((room > 0) & (num_scheduled == 1)).tolist():
        proposed = drafts.get(int(running.request_number[seats[index]]), ())
        num_drafts[index] = min(len(proposed), int(room[index]), budget)
        budget -= int(num_drafts[index])
    return num_drafts


def draft_token_ids(
    request_numbers: NDArray[np.int64], num_drafts: NDArray[np.int64], drafts: Drafts
) -> NDArray[np.int64]:
    """The drafts of all entries, one entry after the other."""
    chosen = zip(request_numbers.tolist(), num_drafts.tolist(), strict=True)
    return np.array([token for number, count in chosen if count for token in drafts[number][:count]], np.int64)
