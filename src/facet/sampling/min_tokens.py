"""min_tokens: forbids end-of-sequence and stop ids until the output has that many tokens.

How many tokens there are is counted on the host, as in `seeds.py`; a seat that has enough costs nothing more.
"""

import numpy as np
from torch import Tensor

from facet.sampling.adjustments import FORBIDDEN, SeatAdjustments, add_to_logits
from facet.sampling.batch_seats import Arrival, BatchSeats
from facet.transfer import array_on_device


class MinTokens:
    def __init__(self) -> None:
        self._min_tokens: dict[int, int] = {}
        self._num_missing: dict[int, int] = {}
        self._adjustments = SeatAdjustments()

    def add_request(self, arrival: Arrival) -> None:
        num_missing = arrival.params.min_tokens - len(arrival.output_token_ids)
        ending = sorted({*arrival.eos_token_ids, *arrival.params.stop_token_ids})
        if num_missing > 0 and ending:
            self._min_tokens[arrival.seat] = arrival.params.min_tokens
            self._num_missing[arrival.seat] = num_missing
            amounts = np.full(len(ending), FORBIDDEN, dtype=np.float32)
            self._adjustments.set(arrival.seat, np.array(ending, dtype=np.int64), amounts)

    def remove_request(self, seat: int) -> None:
        self._min_tokens.pop(seat, None)
        self._num_missing.pop(seat, None)
        self._adjustments.drop(seat)

    def is_active(self, batch: BatchSeats) -> bool:
        return self._adjustments.has_any(batch)

    def apply(self, logits: Tensor, batch: BatchSeats) -> None:
        if batch.runs is None:
            add_to_logits(logits, self._adjustments.gather(batch), batch.held)
            return
        places = zip(batch.seats, batch.runs.offsets, strict=True)
        users = [place for place, (seat, offset) in enumerate(places) if offset < self._num_missing.get(seat, 0)]
        adjustments, further_on = self._adjustments.gather_at(users, batch), batch.runs.further_on
        if further_on is not None:
            # How many tokens more would be enough at each place.
            missing = [
                self._num_missing.get(seat, 0) - offset
                for seat, offset in zip(batch.seats, batch.runs.offsets, strict=True)
            ]
            is_short = further_on.num_tokens < array_on_device(np.array(missing, np.int32), batch.device)
            amounts = adjustments.amounts.masked_fill(~is_short[adjustments.places], 0.0)
            adjustments = adjustments._replace(amounts=amounts)
        add_to_logits(logits, adjustments, batch.held)

    def accept(self, batch: BatchSeats, token_ids: Tensor) -> None:
        if not self._num_missing:
            return
        for seat in self._num_missing.keys() & set(batch.seats):
            self.recount(seat, self._min_tokens[seat] - self._num_missing[seat] + 1)

    def recount(self, seat: int, num_outputs: int) -> None:
        if seat in self._num_missing:
            self._num_missing[seat] = self._min_tokens[seat] - num_outputs
            if self._num_missing[seat] <= 0:
                self.remove_request(seat)
