"""logit_bias: adds a number to the logits of chosen tokens."""

import numpy as np
from torch import Tensor

from facet.sampling.adjustments import SeatAdjustments, add_to_logits
from facet.sampling.batch_seats import Arrival, BatchSeats

# A larger bias decides nothing more, and near float32's limit it would make a logit infinite, which is how a
# broken model looks.
_MAX_BIAS = 1e30


class LogitBias:
    def __init__(self) -> None:
        self._adjustments = SeatAdjustments()

    def add_request(self, arrival: Arrival) -> None:
        items = arrival.params.logit_bias_items
        if items:
            biases = np.clip([bias for _, bias in items], -_MAX_BIAS, _MAX_BIAS).astype(np.float32)
            token_ids = np.array([token_id for token_id, _ in items], dtype=np.int64)
            self._adjustments.set(arrival.seat, token_ids, biases)

    def remove_request(self, seat: int) -> None:
        self._adjustments.drop(seat)

    def is_active(self, batch: BatchSeats) -> bool:
        return self._adjustments.has_any(batch)

    def apply(self, logits: Tensor, batch: BatchSeats) -> None:
        add_to_logits(logits, self._adjustments.gather(batch), batch.held)

    def accept(self, batch: BatchSeats, token_ids: Tensor) -> None:
        """Does nothing: a bias is the same at every position."""
