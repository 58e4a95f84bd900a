"""The scheduler's request to the cache: a step in which everything is decided except which blocks it uses.

`plan_step` makes a `Schedule` without changing anything; `KVCacheManager.commit` chooses blocks and makes a `StepPlan`
of it. A schedule that is never committed leaves no trace.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from facet.kv_cache.prefix_chain import PrefixChain
from facet.kv_cache.prefix_index import PrefixHit
from facet.request import Request
from facet.step import NO_ENCODER_WORK, EncoderWork

_NOBODY = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entrant:
    """A waiting request that gets a seat."""

    seat: int
    request_number: int
    request: Request
    output_token_ids: tuple[int, ...]  # not empty only after a preemption
    is_resumed: bool
    chain: PrefixChain | None  # of its prompt; None: nothing of it is to be kept for others
    hit: PrefixHit | None

    @property
    def num_computed(self) -> int:
        return 0 if self.hit is None else self.hit.position


class Entries(NamedTuple):
    """The requests that compute something in a step: parallel arrays, as in `StepPlan`."""

    seats: NDArray[np.int64]
    request_numbers: NDArray[np.int64]
    num_computed: NDArray[np.int64]
    num_scheduled: NDArray[np.int64]
    num_drafts: NDArray[np.int64]
    samples: NDArray[np.bool_]
    num_logit_rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """A step as decided."""

    step: int
    released_seats: tuple[int, ...]  # ended or preempted since the last step
    preempted_seats: tuple[int, ...]  # of these, the ones this step preempts
    entrants: tuple[Entrant, ...]
    entries: Entries
    draft_token_ids: NDArray[np.int64]  # of all entries, one after the other
    # The seats that go on running, scheduled or not: their windows stand at `running_computed` now.
    running_seats: NDArray[np.int64]
    running_computed: NDArray[np.int64]
    num_undecided: NDArray[np.int64] = field(default_factory=lambda: _NOBODY)  # as in `StepPlan`
    media: EncoderWork = NO_ENCODER_WORK
    was_short_of_time: bool = False  # a prompt got fewer rows so that the step ends in time

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute: do not commit it, and look again when a step has been settled or a
        request came."""
        return len(self.entries.seats) == 0
