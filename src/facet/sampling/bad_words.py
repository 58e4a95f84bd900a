"""bad_words: forbids tokens that would complete one of these sequences.

The last token of a word is forbidden when the output ends with the tokens before it. Those recent tokens are
kept on the device, because the host may not know them yet: a line of the history per seat, the newest last.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from facet.sampling.adjustments import FORBIDDEN, Adjustments, add_to_logits
from facet.sampling.batch_seats import Arrival, BatchSeats, Runs
from facet.transfer import array_on_device, indices_on_device

_NO_TOKEN = -1  # in the history: the output is shorter than this
_ANY_TOKEN = -2  # in a prefix: the word is shorter than this


@dataclass(frozen=True, slots=True)
class _Prepared:
    batch: BatchSeats
    word_places: Tensor  # [words]
    word_seats: Tensor  # [words]
    last_tokens: Tensor  # [words]
    prefixes: Tensor  # [words, history]
    places: Tensor  # [requests with words]
    seats: Tensor  # [requests with words]


class BadWords:
    def __init__(self, num_seats: int, device: torch.device) -> None:
        self._words: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._history = torch.full((num_seats, 0), _NO_TOKEN, dtype=torch.int64, device=device)
        self._prepared: _Prepared | None = None

    def add_request(self, arrival: Arrival) -> None:
        params, output_token_ids = arrival.params, arrival.output_token_ids
        assert params.bad_words_token_ids or not params.bad_words, (
            "bad_words reached the sampler as text; the tokens room writes bad_words_token_ids first"
        )
        if not params.bad_words_token_ids:
            return
        words = tuple(tuple(word) for word in params.bad_words_token_ids)
        self._words[arrival.seat] = words
        self._lengthen_history(max(len(word) for word in words) - 1)
        history_len = self._history.shape[1]
        recent = np.full(history_len, _NO_TOKEN, dtype=np.int64)
        num_known = min(history_len, len(output_token_ids))
        recent[history_len - num_known :] = output_token_ids[len(output_token_ids) - num_known :]
        self._history[arrival.seat] = array_on_device(recent, self._history.device)

    def remove_request(self, seat: int) -> None:
        self._words.pop(seat, None)

    def is_active(self, batch: BatchSeats) -> bool:
        return bool(self._words) and any(seat in self._words for seat in batch.seats)

    def apply(self, logits: Tensor, batch: BatchSeats) -> None:
        prepared = self._prepare(batch)
        if batch.runs is None:
            history = self._history[prepared.word_seats]
        else:
            history = self._history_by_place(batch.runs, batch.runs.following)[prepared.word_places]
        matches = (history == prepared.prefixes) | (prepared.prefixes == _ANY_TOKEN)
        amounts = torch.zeros(len(matches), dtype=torch.float32, device=logits.device)
        amounts.masked_fill_(matches.all(-1), FORBIDDEN)
        add_to_logits(logits, Adjustments(prepared.word_places, prepared.last_tokens, amounts), batch.held)

    def accept(self, batch: BatchSeats, token_ids: Tensor) -> None:
        if not self.is_active(batch) or not self._history.shape[1]:
            return
        prepared = self._prepare(batch)
        older = self._history[prepared.seats, 1:]
        newest = token_ids[prepared.places].unsqueeze(1)
        self._history.index_copy_(0, prepared.seats, torch.cat([older, newest], dim=1))

    def accept_runs(self, batch: BatchSeats, token_ids: Tensor, num_emitted: Tensor) -> None:
        """Like `accept`, for the first `num_emitted` tokens of each run."""
        runs = batch.runs
        if runs is None or not self.is_active(batch) or not self._history.shape[1]:
            return
        last_places = runs.places.gather(1, num_emitted.unsqueeze(1) - 1).squeeze(1)
        older = self._history_by_place(runs, token_ids)[last_places, 1:]
        newest = token_ids[last_places].unsqueeze(1)
        seats = indices_on_device(runs.seats, batch.device)
        self._history.index_copy_(0, seats, torch.cat([older, newest], dim=1))

    def _history_by_place(self, runs: Runs, behind: Tensor) -> Tensor:
        """[places, history]: what stands in front of each place, if `behind` [places] stands behind it."""
        history_len = self._history.shape[1]
        of_run = self._history[indices_on_device(runs.seats, behind.device)]
        whole = torch.cat([of_run, behind[runs.places[:, :-1]]], dim=1)
        offsets = indices_on_device(runs.offsets, behind.device)
        columns = offsets.unsqueeze(1) + torch.arange(history_len, device=behind.device)
        return whole[runs.run_of.unsqueeze(1), columns]

    def _lengthen_history(self, num_tokens: int) -> None:
        """Requests already here keep what they have: their words need no more."""
        num_missing = num_tokens - self._history.shape[1]
        if num_missing > 0:
            self._history = pad(self._history, (num_missing, 0), value=_NO_TOKEN)

    def _prepare(self, batch: BatchSeats) -> _Prepared:
        if self._prepared is None or self._prepared.batch is not batch:
            self._prepared = self._gather(batch)
        return self._prepared

    def _gather(self, batch: BatchSeats) -> _Prepared:
        users = [(place, seat) for place, seat in enumerate(batch.seats) if seat in self._words]
        words = [(place, seat, word) for place, seat in users for word in self._words[seat]]
        history_len = self._history.shape[1]
        table = np.full((len(words), 3 + history_len), _ANY_TOKEN, dtype=np.int64)
        for entry, (place, seat, word) in zip(table, words, strict=True):
            *prefix, last = word
            entry[:3] = place, seat, last
            entry[entry.size - len(prefix) :] = prefix
        on_device = array_on_device(table, batch.device)
        return _Prepared(
            batch=batch,
            word_places=on_device[:, 0],
            word_seats=on_device[:, 1],
            last_tokens=on_device[:, 2],
            prefixes=on_device[:, 3:],
            places=indices_on_device([place for place, _ in users], batch.device),
            seats=indices_on_device([seat for _, seat in users], batch.device),
        )
