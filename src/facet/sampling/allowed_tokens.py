"""allowed_token_ids: restricts sampling to these tokens."""

import torch
from torch import Tensor

from facet.sampling.batch_seats import Arrival, BatchSeats
from facet.sampling.bitmask import apply_bitmask, pack_token_ids
from facet.transfer import array_on_device, indices_on_device


class AllowedTokens:
    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._bitmasks: dict[int, Tensor] = {}
        self._prepared: tuple[BatchSeats, Tensor, Tensor] | None = None

    def add_request(self, arrival: Arrival) -> None:
        if arrival.params.allowed_token_ids is not None:
            packed = pack_token_ids(arrival.params.allowed_token_ids, self._vocab_size)
            self._bitmasks[arrival.seat] = array_on_device(packed, self._device)

    def remove_request(self, seat: int) -> None:
        self._bitmasks.pop(seat, None)

    def is_active(self, batch: BatchSeats) -> bool:
        return bool(self._bitmasks) and any(seat in self._bitmasks for seat in batch.seats)

    def apply(self, logits: Tensor, batch: BatchSeats) -> None:
        if self._prepared is None or self._prepared[0] is not batch:
            users = [(place, seat) for place, seat in enumerate(batch.seats) if seat in self._bitmasks]
            places = indices_on_device([place for place, _ in users], batch.device)
            self._prepared = (batch, torch.stack([self._bitmasks[seat] for _, seat in users]), places)
        _, bitmask, places = self._prepared
        apply_bitmask(logits, bitmask, places, batch.held)

    def accept(self, batch: BatchSeats, token_ids: Tensor) -> None:
        """Does nothing: the same tokens are allowed at every position."""
