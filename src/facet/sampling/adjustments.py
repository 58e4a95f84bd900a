"""Adds amounts to single logits; used by logit_bias, min_tokens and bad_words.

A forbidden token gets -inf added, so that two rules forbidding the same token agree in any order.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from facet.sampling.batch_seats import BatchSeats
from facet.transfer import array_on_device

FORBIDDEN = -math.inf


class Adjustments(NamedTuple):
    """Entries of a batch, on the device; entry i adds amounts[i] to logits[places[i], token_ids[i]]."""

    places: Tensor
    token_ids: Tensor
    amounts: Tensor


def add_to_logits(logits: Tensor, adjustments: Adjustments, held: range | None = None) -> None:
    """`held`: the ids of the logits' columns; None: all."""
    places, token_ids, amounts = adjustments
    if held is not None:
        is_here = (token_ids >= held.start) & (token_ids < held.stop)
        amounts = torch.where(is_here, amounts, 0.0)
        token_ids = torch.where(is_here, token_ids - held.start, 0)
    logits.index_put_((places, token_ids), amounts, accumulate=True)


class SeatAdjustments:
    """Entries kept by seat on the host, gathered for a batch once and remembered until either changes."""

    def __init__(self) -> None:
        self._by_seat: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]] = {}
        self._gathered: tuple[BatchSeats, Adjustments] | None = None

    def set(self, seat: int, token_ids: npt.NDArray[np.int64], amounts: npt.NDArray[np.float32]) -> None:
        self._by_seat[seat] = (token_ids, amounts)
        self._gathered = None

    def drop(self, seat: int) -> None:
        if self._by_seat.pop(seat, None) is not None:
            self._gathered = None

    def has_any(self, batch: BatchSeats) -> bool:
        return bool(self._by_seat) and any(seat in self._by_seat for seat in batch.seats)

    def gather(self, batch: BatchSeats) -> Adjustments:
        if self._gathered is None or self._gathered[0] is not batch:
            users = [place for place, seat in enumerate(batch.seats) if seat in self._by_seat]
            self._gathered = (batch, self.gather_at(users, batch))
        return self._gathered[1]

    def gather_at(self, users: Sequence[int], batch: BatchSeats) -> Adjustments:
        """The adjustments of these places alone."""
        entries = [(place, *self._by_seat[batch.seats[place]]) for place in users]
        places = np.concatenate([np.full(len(ids), place, dtype=np.int64) for place, ids, _ in entries])
        indices = np.stack([places, np.concatenate([ids for _, ids, _ in entries])])
        place_indices, token_ids = array_on_device(indices, batch.device)
        amounts = array_on_device(np.concatenate([amounts for _, _, amounts in entries]), batch.device)
        return Adjustments(place_indices, token_ids, amounts.to(torch.float32))
