"""allowed_token_ids: nothing but these tokens may be chosen."""

import torch
from torch import Tensor

from facet.sampling.batch_rows import Arrival, BatchRows, places_tensor, to_device
from facet.sampling.bitmask import apply_bitmask, pack_token_ids


class AllowedTokens:
    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._bitmasks: dict[int, Tensor] = {}
        self._prepared: tuple[BatchRows, Tensor, Tensor] | None = None

    def add_request(self, arrival: Arrival) -> None:
        if arrival.params.allowed_token_ids is not None:
            packed = pack_token_ids(arrival.params.allowed_token_ids, self._vocab_size)
            self._bitmasks[arrival.row] = to_device(packed, self._device)

    def remove_request(self, row: int) -> None:
        self._bitmasks.pop(row, None)

    def is_active(self, batch: BatchRows) -> bool:
        return bool(self._bitmasks) and any(row in self._bitmasks for row in batch.rows)

    def apply(self, logits: Tensor, batch: BatchRows) -> None:
        if self._prepared is None or self._prepared[0] is not batch:
            users = [(place, row) for place, row in enumerate(batch.rows) if row in self._bitmasks]
            places = places_tensor([place for place, _ in users], batch.device)
            self._prepared = (batch, torch.stack([self._bitmasks[row] for _, row in users]), places)
        _, bitmask, places = self._prepared
        apply_bitmask(logits, bitmask, places)

    def accept(self, batch: BatchRows, token_ids: Tensor) -> None:
        """The same tokens are allowed at every position."""
