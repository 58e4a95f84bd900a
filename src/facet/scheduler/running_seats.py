"""The counts of running requests that change in every step, as arrays over seats.

known tokens <= tokens        the difference is pending: sampled on the device, not yet seen by the host
computed tokens <= tokens     the difference is what the request still wants to compute

Drafts in flight are undecided: each may yet turn out to be a token that is known and computed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from facet.media_span import MediaSpan
from facet.scheduler.request_state import RequestState

NO_REQUEST = 0
Counts = NDArray[np.int64]


class SeatCounts(NamedTuple):
    """The counts of some seats, parallel arrays."""

    request_number: Counts
    num_tokens: Counts
    num_known: Counts
    num_computed: Counts
    num_undecided: Counts  # drafts in flight
    max_num_tokens: Counts
    waits_for_host: Counts  # 0 or 1
    # For prompt_logprobs, positions [logits_from, logits_until) still want their logits.
    logits_from: Counts
    logits_until: Counts

    @property
    def num_pending(self) -> Counts:
        return self.num_tokens - self.num_known

    @property
    def room_for_drafts(self) -> Counts:
        """How many drafts may follow the last token of each: none unless that token is next to be computed.

        If all are accepted one more token comes, so the last draft stands before the last token there can be.
        """
        is_next = self.num_tokens == self.num_computed + 1
        room: Counts = is_next * np.maximum(self.max_num_tokens - self.num_tokens - self.num_undecided - 1, 0)
        return room


class RunningSeats:
    def __init__(self, max_num_seqs: int) -> None:
        # One array, of which the fields are rows: reading all of them of some seats is one operation.
        self._counts = np.zeros((len(SeatCounts._fields), max_num_seqs), np.int64)
        of_all = SeatCounts(*self._counts)
        self.request_number, self.num_tokens, self.num_known = (
            of_all.request_number,
            of_all.num_tokens,
            of_all.num_known,
        )
        self.num_computed, self.num_undecided = of_all.num_computed, of_all.num_undecided
        self.max_num_tokens = of_all.max_num_tokens
        self.waits_for_host = of_all.waits_for_host
        self.logits_from, self.logits_until = of_all.logits_from, of_all.logits_until
        self.seats_that_wait: set[int] = set()  # for the host
        self.seats_with_grammar: set[int] = set()
        self.seats_with_prompt_logits: set[int] = set()
        self.uncuttable: dict[int, tuple[MediaSpan, ...]] = {}  # by seat, of prompts that have such media
        self.encoded: dict[int, tuple[MediaSpan, ...]] = {}  # the same of media whose rows towers make

    def occupy(self, seat: int, state: RequestState, num_computed: int) -> None:
        self.request_number[seat] = state.number
        self.num_tokens[seat] = self.num_known[seat] = state.num_known
        self.num_computed[seat] = num_computed
        self.num_undecided[seat] = 0
        self.max_num_tokens[seat] = state.max_num_tokens
        self.set_waits_for_host(seat, state.request.needs_sampled_token_on_host)
        self.logits_from[seat] = state.num_logits_done
        self.logits_until[seat] = state.num_logits_wanted
        if state.request.grammar is not None:
            self.seats_with_grammar.add(seat)
        if state.num_logits_wanted:
            self.seats_with_prompt_logits.add(seat)
        if state.uncuttable:
            self.uncuttable[seat] = state.uncuttable
        if state.encoded:
            self.encoded[seat] = state.encoded

    def set_waits_for_host(self, seat: int, must_wait: bool) -> None:
        self.waits_for_host[seat] = must_wait
        (self.seats_that_wait.add if must_wait else self.seats_that_wait.discard)(seat)

    def of(self, seats: Counts) -> SeatCounts:
        return SeatCounts(*self._counts[:, seats])

    def accept_drafts(self, seats: Sequence[int], num_drafts: Sequence[int]) -> None:
        """Records for each seat how many drafts turned out right: they are tokens, known, and computed already."""
        if seats:
            for counts in (self.num_tokens, self.num_known, self.num_computed):
                counts[seats] += num_drafts

    def forget_computed_media(self) -> None:
        """Forgets the media of prompts that are computed up to the end of their last span: from there on, they are like
        any other."""
        for media in (self.uncuttable, self.encoded):
            for seat in [seat for seat, spans in media.items() if spans[-1].end <= self.num_computed[seat]]:
                del media[seat]

    def vacate(self, seat: int) -> None:
        self.request_number[seat] = NO_REQUEST
        self.seats_that_wait.discard(seat)
        self.seats_with_grammar.discard(seat)
        self.seats_with_prompt_logits.discard(seat)
        self.uncuttable.pop(seat, None)
        self.encoded.pop(seat, None)
