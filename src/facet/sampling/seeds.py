"""Each request's stream of random numbers: its seed, and how far along it is.

The position is the number of output tokens. It lives on the host alone: the loop knows that a token was
sampled before it knows which, so a resumed or overlapped request continues its stream without a look at the
device.
"""

import secrets

import numpy as np
from torch import Tensor

from facet.sampling.batch_rows import Arrival, BatchRows, to_device
from facet.sampling.noise import noise_keys, seed_states


class Seeds:
    def __init__(self, num_rows: int) -> None:
        self._states = np.zeros(num_rows, dtype=np.uint64)
        self._positions = np.zeros(num_rows, dtype=np.int64)

    def add_request(self, arrival: Arrival) -> None:
        seed = secrets.randbits(64) if arrival.params.seed is None else arrival.params.seed % 2**64
        self._states[arrival.row] = seed_states(np.array([seed], dtype=np.uint64))[0]
        self._positions[arrival.row] = len(arrival.output_token_ids)

    def remove_request(self, row: int) -> None:
        self._positions[row] = 0

    def keys(self, batch: BatchRows) -> Tensor:
        """The noise keys [rows, 2] of this step, on the device."""
        rows = list(batch.rows)
        return to_device(noise_keys(self._states[rows], self._positions[rows]), batch.device)

    def accept(self, batch: BatchRows, token_ids: Tensor) -> None:
        self._positions[list(batch.rows)] += 1
