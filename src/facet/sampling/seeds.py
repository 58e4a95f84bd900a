"""Tracks each request's stream of random numbers: its seed and its position.

The position is the number of output tokens. It lives on the host alone: the loop knows that a token was
sampled before it knows which, so a resumed or overlapped request continues its stream without a look at the
device. For the same reason the keys of the next steps of a batch are known: they are computed and moved to the
device for several steps at once. Behind drafts that are undecided the host has the least position that there can be,
and the device chooses among the keys from there on.
"""

import secrets

import numpy as np
import torch
from torch import Tensor

from facet.sampling.batch_seats import Arrival, BatchSeats
from facet.sampling.noise import noise_keys, seed_states
from facet.transfer import array_on_device

STEPS_AHEAD = 16
# Every step's keys begin at a multiple of 16 bytes, as kernels like it; a row's keys take 8.
_ROWS_ALIGNMENT = 2


class Seeds:
    def __init__(self, num_seats: int) -> None:
        self._states = np.zeros(num_seats, dtype=np.uint64)
        self._positions = np.zeros(num_seats, dtype=np.int64)
        self._batch: BatchSeats | None = None  # whose next steps' keys these are, in turn
        self._next_keys: list[Tensor] = []

    def add_request(self, arrival: Arrival) -> None:
        seed = secrets.randbits(64) if arrival.params.seed is None else arrival.params.seed % 2**64
        self._states[arrival.seat] = seed_states(np.array([seed], dtype=np.uint64))[0]
        self._positions[arrival.seat] = len(arrival.output_token_ids)

    def remove_request(self, seat: int) -> None:
        self._positions[seat] = 0

    def recount(self, seat: int, num_outputs: int) -> None:
        if self._positions[seat] != num_outputs:
            self._positions[seat] = num_outputs
            self._batch = None

    def keys(self, batch: BatchSeats) -> Tensor:
        """The noise keys [rows, 2] of this step, on the device."""
        if batch.runs is not None:
            seats, offsets = list(batch.seats), np.array(batch.runs.offsets)
            positions, further_on = self._positions[seats] + offsets, batch.runs.further_on
            if further_on is None:
                return array_on_device(noise_keys(self._states[seats], positions), batch.device)
            # The keys of every place where a seat may be, of which the device takes those where it is.
            positions = positions + np.arange(further_on.most + 1)[:, None]
            keys = array_on_device(noise_keys(self._states[seats], positions), batch.device)
            return keys[further_on.num_tokens.long(), torch.arange(len(seats), device=batch.device)]
        if self._batch is not batch or not self._next_keys:
            self._batch = batch
            self._next_keys = self._keys_ahead(batch)
        return self._next_keys[-1]

    def accept(self, batch: BatchSeats, token_ids: Tensor) -> None:
        self._positions[list(batch.seats)] += 1
        if self._batch is not batch:
            self._batch = None  # the seats it holds may have moved on
        elif self._next_keys:
            self._next_keys.pop()

    def _keys_ahead(self, batch: BatchSeats) -> list[Tensor]:
        """The keys of this step and the following ones, this step's last."""
        num_rows = len(batch)
        seats = list(batch.seats) + [0] * (-num_rows % _ROWS_ALIGNMENT)
        steps = np.arange(STEPS_AHEAD)[::-1, None]
        keys = noise_keys(self._states[seats], self._positions[seats] + steps)
        return list(array_on_device(keys, batch.device)[:, :num_rows].unbind(0))
