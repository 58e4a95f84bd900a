"""Penalties for tokens that occurred before, as vLLM defines them, in this order:

  repetition   over prompt and output: a positive logit is divided, a negative one multiplied
  frequency    over the output: subtracted once per occurrence
  presence     over the output: subtracted once if there is any

What was seen is counted on the device, [slots, vocab] int32, for requests that ask for a penalty and no
others: a slot holds 2 * (occurrences in the output) + (1 if in the prompt). Beside the counts each slot lists
the ids that were seen, some of them several times, so that a step touches these and not the whole vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from facet.sampling.batch_seats import Arrival, BatchSeats, Runs, row_slices
from facet.sampling_params import SamplingParams
from facet.transfer import array_on_device, indices_on_device

# A stronger penalty decides nothing more and could make a logit infinite, which is how a broken model looks.
_MAX_REPETITION_PENALTY = 1e30
_FIRST_CAPACITY = 1024  # ids listed per slot before the lists are first enlarged


@dataclass(frozen=True, slots=True)
class _Prepared:
    places: Tensor  # [users]
    slots: Tensor  # [users]
    repetition: Tensor  # [users, 1] float32, and the next two
    frequency: Tensor
    presence: Tensor
    uses_repetition: bool


class Penalties:
    def __init__(self, num_seats: int, vocab_size: int, device: torch.device) -> None:
        self._num_seats = num_seats
        self._params: dict[int, SamplingParams] = {}
        self._slots: dict[int, int] = {}
        self._free_slots: list[int] = []
        self._seen = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        # A list is valid beyond its length too: penalizing any token again gives the same logit again.
        self._listed_ids = torch.zeros(0, _FIRST_CAPACITY, dtype=torch.int64, device=device)
        self._list_lengths = torch.zeros(0, dtype=torch.int64, device=device)
        # By seat: the same lengths as the host knows them, and by how much they differ from the number of outputs.
        self._num_listed: dict[int, int] = {}
        self._num_beside_outputs: dict[int, int] = {}
        self._prepared: tuple[BatchSeats, _Prepared] | None = None

    def add_request(self, arrival: Arrival) -> None:
        seat, params = arrival.seat, arrival.params
        if not params.has_penalties:
            return
        if not self._free_slots:
            self._add_slots()
        slot = self._slots[seat] = self._free_slots.pop()
        self._params[seat] = params
        prompt = arrival.prompt_token_ids if params.repetition_penalty != 1.0 else ()
        in_prompt = np.unique(np.asarray(prompt, dtype=np.int64))
        in_output, counts = np.unique(np.asarray(arrival.output_token_ids, dtype=np.int64), return_counts=True)
        device = self._seen.device
        seen = self._seen[slot].zero_()
        seen.index_fill_(0, array_on_device(in_prompt, device), 1)
        seen.index_add_(0, array_on_device(in_output, device), array_on_device((2 * counts).astype(np.int32), device))
        listed = np.concatenate([in_prompt, in_output])
        self._num_listed[seat] = len(listed)
        self._num_beside_outputs[seat] = len(listed) - len(arrival.output_token_ids)
        self._reserve(len(listed))
        self._listed_ids[slot, : len(listed)] = array_on_device(listed, device)
        self._list_lengths[slot].fill_(len(listed))

    def remove_request(self, seat: int) -> None:
        if self._params.pop(seat, None) is not None:
            self._free_slots.append(self._slots.pop(seat))
            del self._num_listed[seat], self._num_beside_outputs[seat]

    def is_active(self, batch: BatchSeats) -> bool:
        return bool(self._params) and any(seat in self._params for seat in batch.seats)

    def apply(self, logits: Tensor, batch: BatchSeats) -> None:
        num_listed = max(self._num_listed.get(seat, 0) for seat in batch.seats)
        if batch.runs is None:
            self._penalize(logits, self._prepare(batch), num_listed, batch.held)
            return
        # Along the runs: each draft counts for the places behind it, and for nothing once they are done.
        if batch.runs.further_on is not None:
            num_listed += batch.runs.further_on.most
        self._reserve(num_listed + batch.runs.longest)
        counted = []
        for offset, users in self._users_by_offset(batch, batch.runs):
            self._penalize(logits, self._gather(users, batch), num_listed + offset, batch.held)
            drafted = [(place, seat) for place, seat in users if batch.runs.has_next(place)]
            slots = indices_on_device([self._slots[seat] for _, seat in drafted], batch.device)
            drafts = batch.runs.following[indices_on_device([place for place, _ in drafted], batch.device)]
            self._listed_ids[slots, self._list_lengths[slots] + offset] = drafts
            self._seen[slots, drafts] += 2
            counted.append((slots, drafts))
        for slots, drafts in counted:
            self._seen[slots, drafts] -= 2

    def _penalize(self, logits: Tensor, prepared: _Prepared, num_listed: int, held: range | None) -> None:
        for part in row_slices(len(prepared.places), max(num_listed, 1), logits.device):
            places, slots = prepared.places[part].unsqueeze(1), prepared.slots[part]
            token_ids = self._listed_ids[slots, :num_listed]
            first = 0
            if held is not None:
                # In place of others' tokens the first of ours: it too may be penalized again, by what is seen of it.
                first = held.start
                token_ids = torch.where((token_ids >= first) & (token_ids < held.stop), token_ids, first)
            seen = self._seen[slots.unsqueeze(1), token_ids]
            penalized = logits[places, token_ids - first]
            if prepared.uses_repetition:
                penalty = prepared.repetition[part]
                scale = torch.where(penalized > 0, 1 / penalty, penalty).masked_fill_(seen == 0, 1.0)
                penalized.mul_(scale)
            occurrences = seen.bitwise_right_shift_(1).to(torch.float32)
            penalized.addcmul_(occurrences, prepared.frequency[part], value=-1)
            penalized.addcmul_(occurrences.clamp_(max=1), prepared.presence[part], value=-1)
            logits[places, token_ids - first] = penalized

    def accept(self, batch: BatchSeats, token_ids: Tensor) -> None:
        if not self.is_active(batch):
            return
        prepared = self._prepare(batch)
        slots, new_ids = prepared.slots, token_ids[prepared.places]
        for seat in batch.seats:
            if seat in self._num_listed:
                self._num_listed[seat] += 1
        self._reserve(max(self._num_listed.values()))
        lengths = self._list_lengths[slots]
        self._listed_ids[slots, lengths] = new_ids
        self._list_lengths[slots] = lengths + 1
        self._seen[slots, new_ids] += 2  # a seat takes part in a step once, so no slot comes twice

    def accept_runs(self, batch: BatchSeats, token_ids: Tensor, num_emitted: Tensor) -> None:
        """Like `accept`, for the first `num_emitted` tokens of each run."""
        if batch.runs is None or not self.is_active(batch):
            return
        for offset, users in self._users_by_offset(batch, batch.runs):
            places = indices_on_device([place for place, _ in users], batch.device)
            slots = indices_on_device([self._slots[seat] for _, seat in users], batch.device)
            counts = (num_emitted[batch.runs.run_of[places]] > offset).to(torch.int32)
            lengths = self._list_lengths[slots]
            self._listed_ids[slots, lengths] = token_ids[places]  # behind the end of a list anything may stand
            self._list_lengths[slots] = lengths + counts
            self._seen[slots, token_ids[places]] += 2 * counts

    def recount(self, seat: int, num_outputs: int) -> None:
        if seat in self._num_listed:
            self._num_listed[seat] = self._num_beside_outputs[seat] + num_outputs
            self._reserve(self._num_listed[seat])

    def num_bytes(self) -> int:
        """The bytes that are kept on the device."""
        return self._seen.nbytes + self._listed_ids.nbytes + self._list_lengths.nbytes

    def _add_slots(self) -> None:
        """Doubles the slots, up to one per seat."""
        num_slots = len(self._seen)
        num_more = min(max(num_slots, 1), self._num_seats - num_slots)
        self._seen = pad(self._seen, (0, 0, 0, num_more))
        self._listed_ids = pad(self._listed_ids, (0, 0, 0, num_more))
        self._list_lengths = pad(self._list_lengths, (0, num_more))
        self._free_slots.extend(range(num_slots, num_slots + num_more))

    def _reserve(self, num_listed: int) -> None:
        """Doubles the lists until each can hold so many ids."""
        capacity = self._listed_ids.shape[1]
        wanted = capacity
        while wanted < num_listed:
            wanted *= 2
        if wanted > capacity:
            self._listed_ids = pad(self._listed_ids, (0, wanted - capacity))

    def _prepare(self, batch: BatchSeats) -> _Prepared:
        if self._prepared is None or self._prepared[0] is not batch:
            users = [(place, seat) for place, seat in enumerate(batch.seats) if seat in self._params]
            self._prepared = (batch, self._gather(users, batch))
        return self._prepared[1]

    def _users_by_offset(self, batch: BatchSeats, runs: Runs) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Places and seats behind no draft, behind one, and so on: of a seat there is one at a time."""
        for offset in range(runs.longest):
            places = [(place, batch.seats[place]) for place in runs.at_offset(offset)]
            yield offset, [(place, seat) for place, seat in places if seat in self._params]

    def _gather(self, users: Sequence[tuple[int, int]], batch: BatchSeats) -> _Prepared:
        params = [self._params[seat] for _, seat in users]
        repetition = np.clip(
            [request.repetition_penalty for request in params],
            1 / _MAX_REPETITION_PENALTY,
            _MAX_REPETITION_PENALTY,
        )
        amounts = np.stack(
            [
                repetition,
                [request.frequency_penalty for request in params],
                [request.presence_penalty for request in params],
            ]
        ).astype(np.float32)
        on_device = array_on_device(amounts, batch.device).unsqueeze(-1)
        return _Prepared(
            places=indices_on_device([place for place, _ in users], batch.device),
            slots=indices_on_device([self._slots[seat] for _, seat in users], batch.device),
            repetition=on_device[0],
            frequency=on_device[1],
            presence=on_device[2],
            uses_repetition=bool((repetition != 1.0).any()),
        )
