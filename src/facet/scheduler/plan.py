"""Decides a step. `plan_step` reads, decides and returns; it changes nothing.

There is no prefill phase and no decode phase. A request has tokens and computed tokens, and a step lets some requests
catch up: a fresh prompt wants many tokens, a generating request wants the one it sampled last. In order:

    1. single tokens are free; the token budget, and the time that a step may
       take beside them, are shared out among running requests that want more      share_budget
    2. if memory does not suffice for that, some get less and the last in line
       are preempted                                                               make_do
    3. if budget and memory are left, waiting requests are admitted, head first    admit

Drafts come second: they get what is left of the budget in 1, before anyone is admitted, and are dropped in 2 before
anyone gives way.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from facet.kv_cache.schedule import Entries, Schedule
from facet.kv_cache.view import CacheView
from facet.media_span import MediaSpan, largest_chunk, least_chunk
from facet.scheduler.admission import Turn, admit
from facet.scheduler.drafting import NO_DRAFTS, Drafts, allot_drafts, draft_token_ids
from facet.scheduler.encoding import EncoderBooks, SpanRows, StepEncoding
from facet.scheduler.limits import Limits
from facet.scheduler.queues import QueuesView
from facet.scheduler.running_seats import RunningSeats, SeatCounts
from facet.scheduler.step_cost import NO_COST, StepCost
from facet.scheduler.time_left import TimeLeft

Counts = NDArray[np.int64]
NO_TOKENS: Counts = np.zeros(0, np.int64)


def plan_step(
    queues: QueuesView,
    cache: CacheView,
    books: EncoderBooks,
    limits: Limits,
    drafts: Drafts = NO_DRAFTS,
    cost: StepCost = NO_COST,
) -> Schedule:
    seats, running = queues.order, queues.seats
    counts = running.of(seats)
    num_computed = counts.num_computed
    wanted, budget = tokens_wanted(counts, running), limits.max_num_batched_tokens
    encoding = StepEncoding(
        books,
        (SpanRows(spans, int(running.num_computed[seat]), 0) for seat, spans in running.encoded.items()),
        max_num_encoded_rows=limits.max_num_encoded_rows,
    )
    generating = NO_TOKENS
    if limits.max_step_seconds is not None:
        generating = num_computed[counts.num_tokens - num_computed <= 1]
    time = TimeLeft(limits.max_step_seconds, cost, generating)
    if running.uncuttable or running.encoded or (time.is_limited and bool((wanted > 1).any())):
        num_scheduled, budget = share_budget_one_by_one(wanted, budget, seats, running, encoding, time)
    else:
        num_scheduled, budget = share_budget(wanted, budget)
    num_drafts = np.zeros(len(seats), np.int64)
    if drafts:
        num_drafts = allot_drafts(counts, num_scheduled, drafts, max_num_drafts=limits.max_num_drafts, budget=budget)
    num_new = cache.num_new_blocks(seats, num_computed, num_scheduled + num_drafts)
    num_left = cache.num_available - int(num_new.sum())
    if num_left < 0 or queues.waiting:  # otherwise it does not matter what comes back
        num_left += cache.num_returning(seats, num_computed)
    if drafts and num_left < 0:
        num_drafts[:] = 0
        num_left += int(num_new.sum())
        num_new = cache.num_new_blocks(seats, num_computed, num_scheduled)
        num_left -= int(num_new.sum())
    if drafts:
        num_scheduled, budget = num_scheduled + num_drafts, budget - int(num_drafts.sum())

    turns: list[Turn] = []
    num_kept = len(seats)
    if num_left < 0:
        num_scheduled, num_kept = make_do(seats, num_computed, num_scheduled, num_new, cache, running.uncuttable)
    elif queues.waiting:
        turns = admit(queues, cache, limits, encoding, time, num_scheduled, budget, num_left)

    preempted = tuple(seats[num_kept:].tolist())
    seats, num_computed = seats[:num_kept], num_computed[:num_kept]
    entries = _entries(running, seats, num_computed, num_scheduled[:num_kept], num_drafts[:num_kept], turns)
    return Schedule(
        step=cache.step,
        released_seats=queues.released_seats + preempted,
        preempted_seats=preempted,
        entrants=tuple(turn.entrant for turn in turns),
        entries=entries,
        draft_token_ids=draft_token_ids(entries.request_numbers, entries.num_drafts, drafts) if drafts else NO_TOKENS,
        running_seats=seats,
        running_computed=num_computed,
        media=encoding.work(_span_rows(running, entries, turns)),
        was_short_of_time=time.was_short,
    )


def tokens_wanted(counts: SeatCounts, running: RunningSeats) -> Counts:
    """Per seat, how many tokens it could compute now. Pending ones count: their ids are on the device."""
    # A token at the very end is sampled but never computed; and one that a grammar must see first waits.
    wanted: Counts = np.minimum(counts.num_tokens, counts.max_num_tokens - 1) - counts.num_computed
    if running.seats_that_wait:
        wanted[(counts.num_pending * counts.waits_for_host) > 0] = 0
    if running.seats_with_prompt_logits:
        # Recomputing after a preemption stops where logits were not delivered before, to start again from there.
        again = (counts.num_computed < counts.logits_from) & (counts.logits_from < counts.logits_until)
        wanted[again] = np.minimum(wanted, counts.logits_from - counts.num_computed)[again]
    return wanted


def share_budget(wanted: Counts, budget: int) -> tuple[Counts, int]:
    """Tokens per seat, and what is left of the budget.

    Who wants one token gets it, beside the budget: single tokens cost little, there are no more of them than requests,
    and counted in they would make a prompt as long as the budget take two steps. The budget goes to the others, first
    in line first. Nobody is passed over for ever: while a running request goes without, none is admitted, and those in
    front end.
    """
    if not np.count_nonzero(wanted > 1):
        return wanted, budget
    wants_one = wanted == 1
    more = np.where(wants_one, 0, wanted)
    shared: Counts = np.clip(budget - (np.cumsum(more) - more), 0, more)
    return shared + wants_one, budget - int(shared.sum())


def share_budget_one_by_one(
    wanted: Counts, budget: int, seats: Counts, running: RunningSeats, encoding: StepEncoding, time: TimeLeft
) -> tuple[Counts, int]:
    """Like `share_budget`, where time is limited or some prompts have media: chunks end where time does, before media
    that towers cannot encode yet, and never inside those that attend both ways.

    A span that does not fit into what is left waits for a step in which it is further in front; the whole budget has
    room for it, or its request would have been refused.
    """
    num_scheduled, left = wanted.copy(), budget
    for index in np.flatnonzero(wanted).tolist():
        seat = int(seats[index])
        encoded, uncuttable = running.encoded.get(seat, ()), running.uncuttable.get(seat, ())
        is_single = wanted[index] == 1
        if is_single and not encoded:
            continue
        start, most = int(running.num_computed[seat]), 1
        if not is_single:
            most = time.most_rows(start, min(int(wanted[index]), left), least_chunk(uncuttable, start))
        count = encoding.largest_chunk(encoded, start, largest_chunk(uncuttable, start, most))
        encoding.take(SpanRows(encoded, start, count))
        num_scheduled[index] = count
        if not is_single:
            time.take(start, count)
            left -= count
    return num_scheduled, left


def make_do(
    seats: Counts,
    num_computed: Counts,
    num_scheduled: Counts,
    num_new: Counts,
    cache: CacheView,
    uncuttable: Mapping[int, Sequence[MediaSpan]],
) -> tuple[Counts, int]:
    """Shares out memory when it is short: in order of the queue, each request gets as many of its tokens as fit.

    Who cannot even compute one token, or all of a span that must not be cut, makes the last in line give way, and so on
    until it can, or until it is the last itself and sits this step out. So a request is only ever preempted for one
    that stands before it, and the first in line always goes on: alone it fits, or it would have been refused.

    Returns the tokens per seat, and how many seats, from the front, go on running.
    """
    num_scheduled = num_scheduled.copy()
    num_kept = len(seats)
    memory = cache.what_if()
    memory.move_windows(seats, num_computed)
    for index in range(len(seats)):
        if index >= num_kept:
            num_scheduled[index:] = 0
            break
        needed = int(num_new[index])
        if needed > memory.num_available:
            seat, computed = int(seats[index]), int(num_computed[index])
            spans = uncuttable.get(seat, ())
            least = least_chunk(spans, computed)
            while not memory.will_fit(seat, computed, least) and num_kept - 1 > index:
                num_kept -= 1
                memory.let_go(int(seats[num_kept]))
            most = memory.most_tokens_that_fit(seat, computed, int(num_scheduled[index]))
            num_scheduled[index] = largest_chunk(spans, computed, most)
            needed = memory.num_new_blocks(seat, computed, int(num_scheduled[index]))
        memory.num_available -= needed
    return num_scheduled, num_kept


def _span_rows(running: RunningSeats, entries: Entries, turns: list[Turn]) -> Iterator[SpanRows]:
    """The rows of the requests that compute something and have media."""
    encoded = {turn.entrant.seat: turn.encoded for turn in turns if turn.encoded} | running.encoded
    if encoded:
        columns = (entries.seats.tolist(), entries.num_computed.tolist(), entries.num_scheduled.tolist())
        for seat, start, count in zip(*columns, strict=True):
            if seat in encoded:
                yield SpanRows(encoded[seat], start, count)


def _entries(
    running: RunningSeats,
    seats: Counts,
    num_computed: Counts,
    num_scheduled: Counts,
    num_drafts: Counts,
    turns: list[Turn],
) -> Entries:
    """The requests that compute something, those with a single token first."""
    some = num_scheduled > 0
    if np.count_nonzero(some) < len(some):
        seats, num_computed, num_scheduled = seats[some], num_computed[some], num_scheduled[some]
        num_drafts = num_drafts[some]
    samples = num_computed + num_scheduled - num_drafts == running.num_tokens[seats]
    num_logit_rows = samples + num_drafts
    if running.seats_with_prompt_logits:
        every_logit = (num_computed >= running.logits_from[seats]) & (num_computed < running.logits_until[seats])
        num_logit_rows = np.where(every_logit, num_scheduled, num_logit_rows)
    entries = Entries(
        seats,
        running.request_number[seats],
        num_computed,
        num_scheduled,
        num_drafts,
        samples,
        num_logit_rows,
    )
    if turns:
        entering = zip(*(turn.entry for turn in turns), strict=True)
        entries = Entries._make(np.append(old, new) for old, new in zip(entries, entering, strict=True))
    is_long = entries.num_scheduled > 1
    if 0 < np.count_nonzero(is_long) < len(is_long):
        order = np.argsort(is_long, kind="stable")
        entries = Entries._make(column[order] for column in entries)
    return entries
