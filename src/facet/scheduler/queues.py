"""Owns the requests: which wait, which run in which seat, and how far each has come.

    submit     a request joins the queue
    view       what the planner may know while deciding
    advance    a schedule was committed: requests change places, computed counts move on, sampled tokens are pending
    settle     a step's results are here: pending tokens become known, accepted drafts count, requests end
    cancel     a request ends at once, also while a step that computes it is in flight

Knows nothing of the cache: what must be released there is handed back as `Ended`.
"""

import time
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from facet.errors import RequestError
from facet.kv_cache.schedule import Entrant, Schedule
from facet.request import FinishReason, Request
from facet.scheduler.drafting import Draftable
from facet.scheduler.request_state import RequestState
from facet.scheduler.running_seats import RunningSeats
from facet.step import StepPlan, StepResult, TokenEvent

_order_key = attrgetter("order_key")


@dataclass(frozen=True, slots=True, eq=False)
class QueuesView:
    order: NDArray[np.int64]  # the running seats, first in line first
    seats: RunningSeats
    waiting: Sequence[RequestState]  # first in line first
    free_seats: Sequence[int]
    released_seats: tuple[int, ...]  # vacated since the last step


class Ended(NamedTuple):
    """A request that left, and the seat to release, if it had one."""

    state: RequestState
    seat: int | None
    num_computed: int
    finish_reason: FinishReason


class Queues:
    def __init__(self, max_num_seqs: int) -> None:
        self._seats = RunningSeats(max_num_seqs)
        self._by_seat: list[RequestState | None] = [None] * max_num_seqs
        self._by_number: dict[int, RequestState] = {}
        self._by_id: dict[str, RequestState] = {}
        self._waiting: list[RequestState] = []
        self._running: list[RequestState] = []
        self._order = np.zeros(0, np.int64)
        self._free_seats = list(range(max_num_seqs))
        self._released_seats: list[int] = []
        self.num_preemptions = 0
        self.num_output_tokens = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def requests(self) -> list[Request]:
        """All that wait or run."""
        return [state.request for state in self._by_number.values()]

    def submit(self, state: RequestState) -> None:
        request_id = state.request.request_id
        if request_id in self._by_id:
            raise RequestError(
                f"A request with id {request_id!r} is still running. Wait for it, cancel it, or use another id.",
                field="request_id",
            )
        self._by_id[request_id] = self._by_number[state.number] = state
        insort(self._waiting, state, key=_order_key)

    def view(self) -> QueuesView:
        return QueuesView(self._order, self._seats, self._waiting, self._free_seats, tuple(self._released_seats))

    def advance(self, schedule: Schedule) -> None:
        """Count a step as computed, though it may only just have been launched."""
        self._released_seats.clear()
        self._admit(schedule.entrants)
        for seat in schedule.preempted_seats:
            self._preempt(seat)
        if schedule.entrants or schedule.preempted_seats:
            self._set_order()

        entries = schedule.entries
        seats, computed = entries.seats, entries.num_computed + entries.num_scheduled - entries.num_drafts
        self._seats.num_computed[seats] = computed
        self._seats.num_tokens[seats[entries.samples]] += 1
        self._seats.num_undecided[seats] += entries.num_drafts
        self._seats.forget_computed_media()
        if self._seats.seats_with_prompt_logits:
            until = self._seats.logits_until[seats]
            self._seats.logits_from[seats] = np.maximum(self._seats.logits_from[seats], np.minimum(computed, until))

    def settle(self, plan: StepPlan, result: StepResult) -> tuple[list[TokenEvent], list[Ended]]:
        """Settles a step. Results of requests that ended while it was in flight are dropped."""
        seats, numbers = plan.seats[plan.samples], plan.request_numbers[plan.samples]
        is_in_place = self._seats.request_number[seats] == numbers
        self._seats.num_known[seats[is_in_place]] += 1
        prompt_logprobs = self._prompt_logprobs_by_number(plan, result)
        logprobs = result.logprobs or (None,) * len(numbers)
        faults = result.faults or (None,) * len(numbers)
        num_drafts: Sequence[int] = (0,) * len(numbers)
        if plan.has_drafts:
            decided = plan.num_drafts[plan.samples]
            self._seats.num_undecided[seats[is_in_place]] -= decided[is_in_place]
            num_drafts = decided.tolist()
        events: list[TokenEvent] = []
        ended: list[Ended] = []
        accepted: dict[int, int] = {}  # by seat: drafts that turned out right, of requests that go on
        num_tokens = 0
        for number, token_ids, token_logprobs, fault, num_drafted in zip(
            numbers.tolist(), result.token_ids, logprobs, faults, num_drafts, strict=True
        ):
            state = self._by_number.get(number)
            if state is None:
                continue
            if len(token_ids) == 1:
                reason = state.append(token_ids[0])
            else:
                num_kept, reason = state.append_run(token_ids)
                token_ids = token_ids[:num_kept]
                token_logprobs = None if token_logprobs is None else token_logprobs[:num_kept]
                if num_kept > 1 and state.seat is not None:
                    if reason is None and fault is None:
                        accepted[state.seat] = num_kept - 1
                    else:
                        self._seats.accept_drafts([state.seat], [num_kept - 1])
            if fault is not None:
                reason, fault = ("error", fault) if reason is None else (reason, None)
            num_tokens += len(token_ids)
            if state.seat is None:  # preempted while the step was in flight
                state.num_pending -= 1
            if reason is not None:
                ended.append(self._end(state, reason))
            prompt_part = prompt_logprobs.pop(number, None) if prompt_logprobs else None
            events.append(
                TokenEvent(
                    state.request.request_id,
                    token_ids,
                    reason,
                    state.num_cached_tokens,
                    token_logprobs,
                    prompt_part,
                    fault,
                    state.queue_seconds,
                    num_drafted,
                )
            )
        self.num_output_tokens += num_tokens
        self._seats.accept_drafts([*accepted], [*accepted.values()])
        for number, payload in prompt_logprobs.items():
            state = self._by_number.get(number)
            if state is not None:
                request_id, num_cached = state.request.request_id, state.num_cached_tokens
                events.append(TokenEvent(request_id, (), None, num_cached, None, payload))
        return events, ended

    def draftable(self, max_num_drafts: int) -> list[Draftable]:
        """All running requests, and with how many drafts each could go on."""
        counts = self._seats.of(self._order)
        room = np.minimum(counts.room_for_drafts, max_num_drafts)
        return [
            Draftable(state.number, state.request.prompt_token_ids, state.output_token_ids, num_pending, num_drafts)
            for state, num_pending, num_drafts in zip(
                self._running, counts.num_pending.tolist(), room.tolist(), strict=True
            )
        ]

    def heard(self, plan: StepPlan, result: StepResult) -> StepResult:
        """The result without tokens of requests that ended while the step was in flight, which it has computed for
        nothing."""
        numbers = plan.request_numbers[plan.samples].tolist()
        if all(number in self._by_number for number in numbers):
            return result
        token_ids = zip(numbers, result.token_ids, strict=True)
        return replace(result, token_ids=tuple([own if number in self._by_number else () for number, own in token_ids]))

    def most_in_place(self, plan: StepPlan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The seats of the plan's requests with drafts that still run, and the most of their computed tokens that can
        prove right, drafts of a later step included."""
        has_drafts = plan.num_drafts > 0
        seats = plan.seats[has_drafts]
        seats = seats[self._seats.request_number[seats] == plan.request_numbers[has_drafts]].astype(np.int64)
        return seats, self._seats.num_computed[seats] + self._seats.num_undecided[seats]

    @property
    def all_wait_for_host(self) -> bool:
        """Whether every running request goes on only once its last token is known."""
        return len(self._seats.seats_that_wait) == len(self._running) > 0

    def set_waits_for_host(self, waits: Mapping[int, bool]) -> None:
        """Says by request number whether from now on a sampled token must be known before the next may be computed."""
        for number, must_wait in waits.items():
            state = self._by_number.get(number)
            if state is not None and state.seat is not None:
                self._seats.set_waits_for_host(state.seat, must_wait)

    def cancel(self, request_id: str) -> Ended | None:
        """Ends a request. None: there is no such request, or it has ended already."""
        state = self._by_id.get(request_id)
        return None if state is None else self._end(state, "abort")

    def check_integrity(self) -> None:
        assert self._running == sorted(self._running, key=_order_key)
        assert self._waiting == sorted(self._waiting, key=_order_key)
        states = [*self._running, *self._waiting]
        assert sorted(state.number for state in states) == sorted(self._by_number)
        assert {state.request.request_id for state in states} == set(self._by_id)
        assert [state.seat for state in self._running] == self._order.tolist()
        assert all(state.seat is None for state in self._waiting)
        assert sorted([*self._order.tolist(), *self._free_seats]) == list(range(len(self._by_seat)))
        waits = self._seats.waits_for_host
        assert self._seats.seats_that_wait == {seat for seat in self._order.tolist() if waits[seat]}
        for state in self._running:
            seat = state.seat
            assert seat is not None
            assert self._by_seat[seat] is state
            assert self._seats.request_number[seat] == state.number
            assert self._seats.num_known[seat] == state.num_known
            assert self._seats.num_computed[seat] <= self._seats.num_tokens[seat] <= state.max_num_tokens
            assert self._seats.num_computed[seat] < state.max_num_tokens, "a token past the end was scheduled"

    def _admit(self, entrants: Sequence[Entrant]) -> None:
        for entrant, state in zip(entrants, self._waiting, strict=False):
            assert entrant.request_number == state.number, "requests are admitted from the head of the line"
            state.seat = entrant.seat
            self._by_seat[entrant.seat] = state
            self._seats.occupy(entrant.seat, state, entrant.num_computed)
            self._free_seats.remove(entrant.seat)
            if not state.was_admitted:
                state.num_cached_tokens = entrant.num_computed
                state.was_admitted = True
                state.queue_seconds = time.monotonic() - state.submitted_at
            insort(self._running, state, key=_order_key)
        del self._waiting[: len(entrants)]

    def _preempt(self, seat: int) -> None:
        state = self._by_seat[seat]
        assert state is not None
        self.num_preemptions += 1
        state.num_pending = int(self._seats.num_tokens[seat] - self._seats.num_known[seat])
        state.num_logits_done = int(self._seats.logits_from[seat])
        self._running.remove(state)
        self._vacate(state)
        insort(self._waiting, state, key=_order_key)

    def _end(self, state: RequestState, reason: FinishReason) -> Ended:
        del self._by_number[state.number], self._by_id[state.request.request_id]
        seat = state.seat
        if seat is None:
            del self._waiting[bisect_left(self._waiting, state.order_key, key=_order_key)]
            return Ended(state, None, 0, reason)
        num_computed = int(self._seats.num_computed[seat])
        state.extend_chain()
        self._running.remove(state)
        self._vacate(state)
        self._released_seats.append(seat)
        self._set_order()
        return Ended(state, seat, num_computed, reason)

    def _vacate(self, state: RequestState) -> None:
        assert state.seat is not None
        self._seats.vacate(state.seat)
        self._by_seat[state.seat] = None
        insort(self._free_seats, state.seat)
        state.seat = None

    def _set_order(self) -> None:
        self._order = np.array([state.seat for state in self._running], np.int64)

    def _prompt_logprobs_by_number(self, plan: StepPlan, result: StepResult) -> dict[int, object]:
        return {int(plan.request_numbers[entry]): payload for entry, payload in result.prompt_logprobs}
