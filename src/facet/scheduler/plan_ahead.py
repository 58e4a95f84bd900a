"""Decides a step that is launched before the tokens of the one before are known, though there are drafts among them.

Where a request goes on depends on how many of its drafts are right, and only the device knows that in time. So the step
is planned for the least that can hold and has blocks for the most, and the device moves its rows to where they belong.
Its drafts are those that a drafter guesses on the device behind the step in flight.

If one request cannot go on like this, nobody does, and the step in flight is waited for. So it is if somebody could be
admitted, or would have to give way.
"""

from collections.abc import Mapping

import numpy as np

from facet.kv_cache.schedule import Entries, Schedule
from facet.kv_cache.view import CacheView
from facet.scheduler.limits import Limits
from facet.scheduler.queues import QueuesView

NO_TOKENS = np.zeros(0, np.int64)


def plan_ahead(
    queues: QueuesView, cache: CacheView, limits: Limits, num_drafts_wanted: Mapping[int, int]
) -> Schedule | None:
    """`num_drafts_wanted`: by request number. None: the step in flight has to be settled first."""
    seats, running = queues.order, queues.seats
    if (
        running.seats_that_wait
        or running.seats_with_grammar  # masks follow tokens that the host knows
        or running.uncuttable
        or running.encoded
        or (queues.waiting and queues.free_seats)
    ):
        return None
    counts = running.of(seats)
    has_just_sampled = (counts.num_pending == 1) & (counts.num_tokens == counts.num_computed + 1)
    if np.count_nonzero(has_just_sampled) < len(seats):
        return None
    # Who has its last token by now ends when it is settled. Who may have it goes on, for nothing if so.
    goes_on = counts.num_tokens < counts.max_num_tokens
    wanted = [num_drafts_wanted.get(number, 0) for number in counts.request_number.tolist()]
    num_drafts = np.minimum(counts.room_for_drafts, wanted)[goes_on]
    num_scheduled, num_undecided = 1 + num_drafts, counts.num_undecided[goes_on]
    if (
        not np.count_nonzero(num_drafts)
        or num_scheduled.sum() > limits.max_num_rows_ahead
        or num_drafts.sum() > limits.max_num_batched_tokens
    ):
        return None
    num_computed = counts.num_computed[goes_on]
    num_new = cache.num_new_blocks(seats[goes_on], num_computed + num_undecided, num_scheduled)
    if num_new.sum() > cache.num_available:
        return None
    order = np.argsort(num_drafts > 0, kind="stable")
    entries = Entries(
        seats=seats[goes_on],
        request_numbers=counts.request_number[goes_on],
        num_computed=num_computed,
        num_scheduled=num_scheduled,
        num_drafts=num_drafts,
        samples=np.ones(len(order), np.bool_),
        num_logit_rows=num_scheduled,
    )
    return Schedule(
        step=cache.step,
        released_seats=queues.released_seats,
        preempted_seats=(),
        entrants=(),
        entries=Entries._make(column[order] for column in entries),
        draft_token_ids=NO_TOKENS,
        num_undecided=num_undecided[order],
        running_seats=seats,
        running_computed=counts.num_computed,
    )
