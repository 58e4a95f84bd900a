"""Drafts: tokens that a step computes before they are known to be right.

A *drafter* guesses how a request goes on. A step computes the guesses behind the request's last token, samples at every
position and accepts the longest run that agrees with what was sampled; one token more is always right. To the books a
draft is nothing until it is accepted: it counts neither as a token nor as computed, so no window moves on and no prefix
is kept because of it. The only thing to give back is blocks.

A request is drafted for when all its tokens are known and all but the last computed. With drafts in flight it waits:
what it computes next depends on how many were right.

The overlapped loop launches a step before it knows the tokens of the last one, and a text can only be continued where
it is known. So drafts from the text and overlap take turns. While no text can be guessed, or too many requests run for
drafts to pay, steps overlap as without a drafter. Where guesses promise more than overlap saves
(`Drafter.is_worth_waiting`), and for as long as steps have drafts, each is settled before the next is planned.

Drafts that a model makes on the device can be verified unseen (`Drafter.num_unseen`): a step with them is launched
ahead of the tokens that they follow (`plan_ahead.py`), and steps overlap all the same.
"""

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from facet.draft_counts import DraftCounts
from facet.scheduler.running_seats import SeatCounts
from facet.step import StepPlan, StepResult

# The drafts of requests, by request number.
Drafts = Mapping[int, Sequence[int]]
NO_DRAFTS: Drafts = MappingProxyType({})


class Draftable(NamedTuple):
    """A running request as a drafter sees it."""

    request_number: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]  # that are known
    num_pending: int  # tokens that were sampled and are not known yet
    max_num_drafts: int  # behind them; 0: it is still computing its prompt, or about to end


class Drafter(Protocol):
    max_num_drafts: int  # for one request in one step

    def could_gain(self, num_running: int) -> bool:
        """Whether drafts can be of use beside so many requests. If not, nothing else is asked."""

    def num_ahead(self, num_running: int) -> int:
        """How many tokens a model of its own should guess, on the device, behind the tokens of the next step.

        Asked once of every step, right before it is launched.
        """

    def propose(self, requests: Sequence[Draftable]) -> Drafts:
        """Guesses for some of the running requests that have no pending token.

        Anything may be guessed: a wrong guess costs time, never an answer.
        """

    def num_unseen(self, requests: Sequence[Draftable]) -> Mapping[int, int]:
        """How many of the guesses that are being made on the device to verify before anyone has seen them, by request
        number; none: all have to be seen first."""

    def is_worth_waiting(self, requests: Sequence[Draftable]) -> bool:
        """Whether requests with a pending token should wait until it is known, because drafts could follow it."""

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        """Learns from a step that has been settled, so long after the device could begin it. The next one may have been
        launched.

        Requests that ended meanwhile have no tokens in the result.
        """

    def hear(self, plan: StepPlan, guesses: Sequence[Sequence[int]]) -> None:
        """What was guessed on the device, as `num_ahead` asked for: one guess per entry of the plan that samples."""


def allot_drafts(
    counts: SeatCounts,
    num_scheduled: NDArray[np.int64],
    drafts: Drafts,
    *,
    max_num_drafts: int,
    budget: int,
) -> NDArray[np.int64]:
    """How many drafts each running request gets, out of what known tokens leave of the budget; first in line first."""
    may_draft = (counts.num_pending == 0) & (num_scheduled == 1)
    room = (may_draft * np.minimum(counts.room_for_drafts, max_num_drafts)).tolist()
    num_drafts = [0] * len(room)
    for index, (number, most) in enumerate(zip(counts.request_number.tolist(), room, strict=True)):
        if most and number in drafts:
            num_drafts[index] = min(len(drafts[number]), most, budget)
            budget -= num_drafts[index]
    return np.array(num_drafts, np.int64)


def draft_token_ids(
    request_numbers: NDArray[np.int64], num_drafts: NDArray[np.int64], drafts: Drafts
) -> NDArray[np.int64]:
    """The drafts of all entries, one entry after the other."""
    chosen = zip(request_numbers.tolist(), num_drafts.tolist(), strict=True)
    return np.array([token for number, count in chosen if count for token in drafts[number][:count]], np.int64)


class DraftCounter:
    """Counts the drafts of settled steps and what became of them."""

    def __init__(self, max_num_drafts: int) -> None:
        self._num_drafts = 0
        self._num_runs = [0] * (max_num_drafts + 1)  # by how many of their drafts were accepted

    def count(self, plan: StepPlan, result: StepResult) -> None:
        for count, token_ids in zip(plan.num_drafts[plan.samples].tolist(), result.token_ids, strict=True):
            if count and token_ids:
                self._num_drafts += count
                self._num_runs[min(count, len(token_ids) - 1)] += 1

    def counts(self) -> DraftCounts:
        by_place = list(itertools.accumulate(reversed(self._num_runs[1:])))[::-1]
        return DraftCounts(
            num_runs=sum(self._num_runs),
            num_drafts=self._num_drafts,
            num_accepted=sum(by_place),
            num_accepted_by_place=tuple(by_place),
        )
