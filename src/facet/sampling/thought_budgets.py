"""thinking_token_budget: closes a thought that has as many tokens as it may have, and lets no other one open.

What is left of each budget is kept on the device, by seat, and moves on with the tokens that are sampled there. So the
host need not see a token before the next one is launched, and a step with drafts knows the state behind each of them.
The closing token is put in the place of the sampled one: whatever other rules forbid, a thought can be closed.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from facet.kernels.token_choice import Outcome
from facet.sampling.adjustments import FORBIDDEN, Adjustments, add_to_logits
from facet.sampling.batch_seats import NO_DRAFT, Arrival, BatchSeats, Runs
from facet.thoughts import ThoughtCounter
from facet.transfer import array_on_device, indices_on_device

_UNLIMITED = 2**62
_NO_TOKEN = -2  # neither a token nor NO_DRAFT


class _States:
    """The states of several seats or places, before their next token."""

    def __init__(self, num_left: Tensor, is_open: Tensor, token_ids: Tensor) -> None:
        self.num_left = num_left  # [n] int64: thought tokens that may still come
        self.is_open = is_open  # [n] bool: inside a thought
        self.open_ids, self.end_ids = token_ids[:, 0], token_ids[:, 1:]

    @property
    def close_ids(self) -> Tensor:
        return self.end_ids[:, 0]

    def advance(self, token_ids: Tensor) -> None:
        """Moves each state on by a token; NO_DRAFT: by none. The rule is that of `ThoughtCounter`."""
        is_end = (token_ids.unsqueeze(1) == self.end_ids).any(1)
        is_thought = self.is_open & ~is_end
        self.num_left = self.num_left - (is_thought & (token_ids != NO_DRAFT)).to(torch.int64)
        self.is_open = torch.where(self.is_open, ~is_end, token_ids == self.open_ids)


class ThoughtBudgets:
    def __init__(self, num_seats: int, device: torch.device) -> None:
        self._users: set[int] = set()
        self._num_left = torch.full((num_seats,), _UNLIMITED, dtype=torch.int64, device=device)
        self._is_open = torch.zeros(num_seats, dtype=torch.bool, device=device)
        # [seats, ids]: what opens a thought, what closes it, what ends it otherwise; filled up with _NO_TOKEN
        self._token_ids = torch.full((num_seats, 2), _NO_TOKEN, dtype=torch.int64, device=device)
        self._seats: tuple[BatchSeats, Tensor] | None = None
        self._forced: tuple[Tensor, Tensor] | None = None  # of the step being sampled: by place, whether and with what

    def add_request(self, arrival: Arrival) -> None:
        budget, thought, seat = arrival.params.thinking_token_budget, arrival.thought, arrival.seat
        if budget is None:
            return
        assert thought is not None, "a budget reached the sampler without the tokens that mark a thought"
        counter = ThoughtCounter(thought)
        counter.push_all(arrival.output_token_ids)
        ids = np.array([thought.open_id, *thought.end_ids], np.int64)
        num_missing = len(ids) - self._token_ids.shape[1]
        if num_missing > 0:
            self._token_ids = pad(self._token_ids, (0, num_missing), value=_NO_TOKEN)
        self._users.add(seat)
        self._token_ids[seat].fill_(_NO_TOKEN)
        self._token_ids[seat, : len(ids)] = array_on_device(ids, self._token_ids.device)
        self._num_left[seat].fill_(budget - counter.count)
        self._is_open[seat].fill_(counter.is_open)

    def remove_request(self, seat: int) -> None:
        if seat in self._users:
            self._users.remove(seat)
            self._num_left[seat].fill_(_UNLIMITED)

    def is_active(self, batch: BatchSeats) -> bool:
        return bool(self._users) and not self._users.isdisjoint(batch.seats)

    def apply(self, logits: Tensor, batch: BatchSeats) -> None:
        """Sees to it that nothing opens a thought that could have no token."""
        states = self._by_place(batch)
        is_spent = states.num_left <= 0
        amounts = torch.zeros(len(batch), dtype=torch.float32, device=logits.device)
        amounts.masked_fill_(is_spent & ~states.is_open, FORBIDDEN)
        places = torch.arange(len(batch), device=logits.device)
        add_to_logits(logits, Adjustments(places, states.open_ids.clamp(min=0), amounts), batch.held)
        self._forced = (is_spent & states.is_open, states.close_ids)

    def force(self, chosen: Outcome) -> None:
        """The tokens that close a thought, in place of those chosen since `apply`; where the model failed, none."""
        if self._forced is None:
            return
        (is_forced, close_ids), self._forced = self._forced, None
        is_forced = is_forced & chosen.is_finite
        chosen.token_ids.copy_(torch.where(is_forced, close_ids, chosen.token_ids))
        chosen.has_choice.logical_or_(is_forced)

    def accept(self, batch: BatchSeats, token_ids: Tensor) -> None:
        if self.is_active(batch):
            seats = self._seats_of(batch)
            states = self._of_seats(seats)
            states.advance(token_ids)
            self._keep(seats, states)

    def accept_runs(self, batch: BatchSeats, token_ids: Tensor, num_emitted: Tensor) -> None:
        """Like `accept`, for the first `num_emitted` tokens of each run."""
        runs = batch.runs
        if runs is None or not self.is_active(batch):
            return
        seats = indices_on_device(runs.seats, batch.device)
        states = self._of_seats(seats)
        for offset in range(runs.longest):
            behind = token_ids[runs.places[:, offset]]
            states.advance(torch.where(num_emitted > offset, behind, NO_DRAFT))
        self._keep(seats, states)

    def _by_place(self, batch: BatchSeats) -> _States:
        if batch.runs is None:
            return self._of_seats(self._seats_of(batch))
        states = self._of_seats(indices_on_device(batch.seats, batch.device))
        self._put_drafts_before(states, batch.runs, batch.device)
        return states

    def _put_drafts_before(self, by_place: _States, runs: Runs, device: torch.device) -> None:
        """Moves the state of each place on by the drafts in front of it."""
        along = self._of_seats(indices_on_device(runs.seats, device))
        for offset in range(runs.longest):
            places = runs.places[:, offset]  # a short run is at its last place by now, where nothing moves on
            by_place.num_left[places], by_place.is_open[places] = along.num_left, along.is_open
            along.advance(runs.following[places])

    def _of_seats(self, seats: Tensor) -> _States:
        return _States(self._num_left[seats], self._is_open[seats], self._token_ids[seats])

    def _keep(self, seats: Tensor, states: _States) -> None:
        self._num_left[seats] = states.num_left
        self._is_open[seats] = states.is_open

    def _seats_of(self, batch: BatchSeats) -> Tensor:
        if self._seats is None or self._seats[0] is not batch:
            self._seats = (batch, indices_on_device(batch.seats, batch.device))
        return self._seats[1]
