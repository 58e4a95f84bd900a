"""The counts of running requests that change in every step, as arrays over seats.

known tokens <= tokens        the difference is pending: sampled on the device, not yet seen by the host
computed tokens <= tokens     the difference is what the request still wants to compute
"""

import numpy as np
from numpy.typing import NDArray

from facet.media_span import MediaSpan
from facet.scheduler.request_state import RequestState

NO_REQUEST = 0


class RunningSeats:
    def __init__(self, max_num_seqs: int) -> None:
        self.request_number = np.full(max_num_seqs, NO_REQUEST, np.int64)
        self.num_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_known = np.zeros(max_num_seqs, np.int64)
        self.num_computed = np.zeros(max_num_seqs, np.int64)
        self.max_num_tokens = np.zeros(max_num_seqs, np.int64)
        self.waits_for_host = np.zeros(max_num_seqs, np.bool_)
        # For prompt_logprobs, positions [logits_from, logits_until) still want their logits.
        self.logits_from = np.zeros(max_num_seqs, np.int64)
        self.logits_until = np.zeros(max_num_seqs, np.int64)
        self.uncuttable: dict[int, tuple[MediaSpan, ...]] = {}  # by seat, of prompts that have such media
        self.encoded: dict[int, tuple[MediaSpan, ...]] = {}  # the same of media whose rows towers make

    def occupy(self, seat: int, state: RequestState, num_computed: int) -> None:
        self.request_number[seat] = state.number
        self.num_tokens[seat] = self.num_known[seat] = state.num_known
        self.num_computed[seat] = num_computed
        self.max_num_tokens[seat] = state.max_num_tokens
        self.waits_for_host[seat] = state.request.needs_sampled_token_on_host
        self.logits_from[seat] = state.num_logits_done
        self.logits_until[seat] = state.num_logits_wanted
        if state.uncuttable:
            self.uncuttable[seat] = state.uncuttable
        if state.encoded:
            self.encoded[seat] = state.encoded

    def room_for_drafts(self, seats: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many drafts may follow the last token of each: none unless that token is next to be computed.

        If all are accepted one more token comes, so the last draft stands before the last token there can be.
        """
        num_tokens = self.num_tokens[seats]
        is_next = num_tokens == self.num_computed[seats] + 1
        room: NDArray[np.int64] = is_next * np.maximum(self.max_num_tokens[seats] - num_tokens - 1, 0)
        return room

    def num_pending(self, seats: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.num_tokens[seats] - self.num_known[seats]

    def accept_drafts(self, seat: int, count: int) -> None:
        """Drafts turned out right: they are tokens, known, and computed already."""
        for counts in (self.num_tokens, self.num_known, self.num_computed):
            counts[seat] += count

    def forget_computed_media(self) -> None:
        """Behind its last span, a prompt is like any other."""
        for media in (self.uncuttable, self.encoded):
            for seat in [seat for seat, spans in media.items() if spans[-1].end <= self.num_computed[seat]]:
                del media[seat]

    def vacate(self, seat: int) -> None:
        self.request_number[seat] = NO_REQUEST
        self.uncuttable.pop(seat, None)
        self.encoded.pop(seat, None)
