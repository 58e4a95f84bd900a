"""Each request's stream of random numbers: its seed, and how far along it is.

The position is the number of output tokens. It lives on the host alone: the loop knows that a token was
sampled before it knows which, so a resumed or overlapped request continues its stream without a look at the
device. For the same reason the keys of the next steps of a batch are known: they are computed and moved to the
device for several steps at once.
"""

import secrets

import numpy as np
from torch import Tensor

from facet.sampling.batch_rows import Arrival, BatchRows, to_device
from facet.sampling.noise import noise_keys, seed_states

STEPS_AHEAD = 16
# Every step's keys begin at a multiple of 16 bytes, as kernels like it; a row's keys take 8.
_ROWS_ALIGNMENT = 2


class Seeds:
    def __init__(self, num_rows: int) -> None:
        self._states = np.zeros(num_rows, dtype=np.uint64)
        self._positions = np.zeros(num_rows, dtype=np.int64)
        self._batch: BatchRows | None = None  # whose next steps' keys these are, in turn
        self._next_keys: list[Tensor] = []

    def add_request(self, arrival: Arrival) -> None:
        seed = secrets.randbits(64) if arrival.params.seed is None else arrival.params.seed % 2**64
        self._states[arrival.row] = seed_states(np.array([seed], dtype=np.uint64))[0]
        self._positions[arrival.row] = len(arrival.output_token_ids)

    def remove_request(self, row: int) -> None:
        self._positions[row] = 0

    def keys(self, batch: BatchRows) -> Tensor:
        """The noise keys [rows, 2] of this step, on the device."""
        if self._batch is not batch or not self._next_keys:
            self._batch = batch
            self._next_keys = self._keys_ahead(batch)
        return self._next_keys[-1]

    def accept(self, batch: BatchRows, token_ids: Tensor) -> None:
        self._positions[list(batch.rows)] += 1
        if self._batch is not batch:
            self._batch = None  # the rows it holds may have moved on
        elif self._next_keys:
            self._next_keys.pop()

    def _keys_ahead(self, batch: BatchRows) -> list[Tensor]:
        """Of this step and the following ones, this step's last."""
        num_rows = len(batch)
        rows = list(batch.rows) + [0] * (-num_rows % _ROWS_ALIGNMENT)
        steps = np.arange(STEPS_AHEAD)[::-1, None]
        keys = noise_keys(self._states[rows], self._positions[rows] + steps)
        return list(to_device(keys, batch.device)[:, :num_rows].unbind(0))
