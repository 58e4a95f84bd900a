"""Chooses one token id per row of logits: greedy, or sampled among the tokens that the settings allow.

Sampling is an exponential race: the token with the largest weight / exponential noise wins, and wins with
probability proportional to its weight. One argmax, no normalisation, and only the survivors need noise.

Rows are told apart on the host, by their settings:
  narrow   top_k up to NARROW_LIMIT, greedy included (top_k 1): decided among the best few candidates
  wide     a larger top_k: the same among that many, some rows at a time
  nucleus  top_p without top_k: the best NUCLEUS_CANDIDATES, or all where they turn out not to suffice
  open     neither: every token of the vocabulary takes part

On a GPU `facet.kernels.token_choice` chooses for all of them together, in a few launches and without the host
waiting; of the groups below, only the wide one remains.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from facet.kernels.token_choice import NARROW_LIMIT as NARROW_LIMIT
from facet.kernels.token_choice import ChoiceSettings, Outcome, choose_tokens
from facet.sampling.batch_seats import Arrival, BatchSeats, row_slices
from facet.sampling.candidates import Best, Candidates
from facet.sampling.noise import exponential, random_bits, scramble_token_ids
from facet.sampling.truncation import Truncation, is_covered, relative_weights, total_mass, truncate
from facet.sampling.vocabulary import Vocabulary
from facet.transfer import array_on_device, indices_on_device

NUCLEUS_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class _Group:
    places: Tensor  # into the batch, int64
    truncation: Truncation

    def select(self, index: Tensor) -> "_Group":
        return _Group(self.places[index], self.truncation.select(index))


class _Part(NamedTuple):
    """Some rows of a group, with copies of their logits."""

    places: Tensor
    truncation: Truncation
    logits: Tensor  # float32
    keys: Tensor


@dataclass(frozen=True, slots=True)
class _Groups:
    """A batch's rows by kind. `narrow` spans the whole batch: a row of another kind is overwritten
    afterwards, which costs less than copying the logits of the narrow ones out."""

    seats: tuple[int, ...]  # by place in the batch
    is_greedy: bool
    settings: ChoiceSettings | None  # where kernels choose; of the groups there is only `wide` then
    narrow: Truncation | None
    narrow_k: int
    wide: _Group | None
    wide_k: int
    nucleus: _Group | None
    open: _Group | None


class Choice:
    def __init__(self, num_seats: int, vocabulary: Vocabulary, device: torch.device, *, uses_kernels: bool) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocabulary.size
        self._device = device
        self._uses_kernels = uses_kernels
        self._temperature = np.ones(num_seats, dtype=np.float64)
        self._top_k = np.ones(num_seats, dtype=np.int64)
        self._top_p = np.ones(num_seats, dtype=np.float64)
        self._min_p = np.zeros(num_seats, dtype=np.float64)
        self._groups: _Groups | None = None
        self._scrambled_vocabulary: Tensor | None = None

    def add_request(self, arrival: Arrival) -> None:
        seat, params = arrival.seat, arrival.params
        if params.is_greedy:
            self._set(seat, temperature=1.0, top_k=1, top_p=1.0, min_p=0.0)
        else:
            top_k = min(params.top_k, self._vocab_size) or self._vocab_size
            self._set(seat, params.temperature, top_k, params.top_p, params.min_p)

    def remove_request(self, seat: int) -> None:
        """Does nothing: the settings stay until another request brings its own."""

    def needs_noise(self, batch: BatchSeats) -> bool:
        return not self._prepare(batch).is_greedy

    def choose(self, logits: Tensor, batch: BatchSeats, keys: Tensor | None, raw_max: Tensor | None) -> Outcome:
        """One token per row. `keys` may be None where no row needs noise. `raw_max` [rows] is the largest logit before
        masks, which could hide a NaN of the model's; None: nothing was masked."""
        groups = self._prepare(batch)
        if groups.settings is not None:
            outcome = choose_tokens(logits, groups.settings, keys, raw_max if raw_max is None else raw_max.float())
            if groups.wide is not None:
                self._choose_wide(outcome.token_ids, groups.wide, groups.wide_k, logits, keys)
                outcome.token_ids.mul_(outcome.has_choice & outcome.is_finite)
            return outcome
        best = self._choose_in_groups(groups, logits, keys)
        has_choice = best.row_max.abs() < math.inf  # false for NaN too
        is_finite = has_choice if raw_max is None else raw_max.abs() < math.inf
        is_token = has_choice if raw_max is None else has_choice & is_finite
        return Outcome(None, best.token_ids * is_token, is_finite, has_choice)

    def _choose_wide(self, token_ids: Tensor, group: _Group, k: int, logits: Tensor, keys: Tensor | None) -> None:
        assert keys is not None, "a row samples, so the step needs noise keys"
        for part in self._parts(group, logits, keys):
            token_ids.index_copy_(0, part.places, self._choose_among_best(part, k).token_ids)

    def _choose_in_groups(self, groups: _Groups, logits: Tensor, keys: Tensor | None) -> Best:
        if groups.is_greedy:
            return self._vocabulary.best_token(logits)
        assert keys is not None, "a row samples, so the step needs noise keys"
        if groups.narrow is not None:
            candidates = self._vocabulary.top_candidates(logits, groups.narrow_k)
            chosen = Best(self._race(candidates, groups.narrow, keys), candidates.row_max)
        else:
            chosen = Best(
                torch.zeros(len(logits), dtype=torch.int64, device=logits.device),
                torch.zeros(len(logits), dtype=logits.dtype, device=logits.device),
            )
        if groups.wide is not None:
            for part in self._parts(groups.wide, logits, keys):
                _put(chosen, part, self._choose_among_best(part, groups.wide_k))
        if groups.nucleus is not None:
            self._choose_in_nuclei(chosen, groups.nucleus, logits, keys)
        if groups.open is not None:
            for part in self._parts(groups.open, logits, keys):
                _put(chosen, part, self._choose_openly(part))
        return chosen

    def _choose_in_nuclei(self, chosen: Best, group: _Group, logits: Tensor, keys: Tensor) -> None:
        parts_covered = []
        for part in self._parts(group, logits, keys):
            best, covered = self._choose_in_nucleus(part)
            _put(chosen, part, best)
            parts_covered.append(covered)
        covered = torch.cat(parts_covered)
        if bool(covered.all()):  # the host waits here
            return
        uncovered = group.select(covered.logical_not().nonzero().squeeze(1))
        for part in self._parts(uncovered, logits, keys):
            _put(chosen, part, self._choose_among_best(part, self._vocab_size))

    def _choose_in_nucleus(self, part: _Part) -> tuple[Best, Tensor]:
        """The choice, and whether it is right: [rows] bool, the nucleus lies within the candidates."""
        candidates = self._vocabulary.top_candidates(part.logits, NUCLEUS_CANDIDATES)
        weights = _weights(candidates, part.truncation)
        all_weights = relative_weights(part.logits, candidates.logits[:, :1], part.truncation)
        mass = self._vocabulary.sum(total_mass(all_weights))
        covered = is_covered(weights, part.truncation, mass)
        token_ids = self._winner(truncate(weights, part.truncation, mass), candidates.token_ids, part.keys)
        return Best(token_ids, candidates.row_max), covered

    def _choose_among_best(self, part: _Part, k: int) -> Best:
        candidates = self._vocabulary.top_candidates(part.logits, k)
        return Best(self._race(candidates, part.truncation, part.keys), candidates.row_max)

    def _choose_openly(self, part: _Part) -> Best:
        row_max = self._vocabulary.row_max(part.logits)
        weights = relative_weights(part.logits, row_max.unsqueeze(-1), part.truncation)
        noise = exponential(random_bits(part.keys, self._scrambled()[self._vocabulary.ids]))
        return Best(self._vocabulary.best_token(weights.div_(noise)).token_ids, row_max)

    def _race(self, candidates: Candidates, truncation: Truncation, keys: Tensor) -> Tensor:
        weights = truncate(_weights(candidates, truncation), truncation)
        return self._winner(weights, candidates.token_ids, keys)

    def _winner(self, weights: Tensor, token_ids: Tensor, keys: Tensor) -> Tensor:
        noise = exponential(random_bits(keys, self._scrambled()[token_ids]))
        return token_ids.gather(1, weights.div_(noise).argmax(-1, keepdim=True)).squeeze(1)

    def _scrambled(self) -> Tensor:
        if self._scrambled_vocabulary is None:
            vocabulary = torch.arange(self._vocab_size, dtype=torch.int32, device=self._device)
            self._scrambled_vocabulary = scramble_token_ids(vocabulary)
        return self._scrambled_vocabulary

    def _parts(self, group: _Group, logits: Tensor, keys: Tensor) -> Iterator[_Part]:
        for part in row_slices(len(group.places), self._vocab_size, self._device):
            places = group.places[part]
            yield _Part(places, group.truncation.select(part), logits[places].float(), keys[places])

    def _set(self, seat: int, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
        self._temperature[seat] = temperature
        self._top_k[seat] = top_k
        self._top_p[seat] = top_p
        self._min_p[seat] = min_p
        self._groups = None

    def _prepare(self, batch: BatchSeats) -> _Groups:
        if self._groups is None or self._groups.seats != batch.seats:
            self._groups = self._group(batch)
        return self._groups

    def _group(self, batch: BatchSeats) -> _Groups:
        seats = np.asarray(batch.seats, dtype=np.int64)
        top_k = self._top_k[seats]
        is_narrow = top_k <= min(NARROW_LIMIT, self._vocab_size - 1)
        is_wide = ~is_narrow & (top_k < self._vocab_size)
        is_nucleus = ~is_narrow & ~is_wide & (self._top_p[seats] < 1)
        is_open = ~is_narrow & ~is_wide & ~is_nucleus
        narrow_k = int(top_k[is_narrow].max(initial=1))
        wide_k = int(top_k[is_wide].max(initial=1))
        wide = self._select(seats, is_wide, wide_k)
        is_greedy = bool((top_k == 1).all())
        if self._uses_kernels:
            settings = ChoiceSettings(
                by_row=array_on_device(self._settings(seats).T, self._device),
                is_greedy=is_greedy,
                largest_narrow_k=narrow_k,
                has_min_p=bool((is_open & (self._min_p[seats] > 0)).any()),
                has_top_p=bool(is_nucleus.any()),
            )
            return _Groups(batch.seats, is_greedy, settings, None, narrow_k, wide, wide_k, None, None)
        return _Groups(
            seats=batch.seats,
            is_greedy=is_greedy,
            settings=None,
            narrow=self._truncation(seats, narrow_k) if is_narrow.any() else None,
            narrow_k=narrow_k,
            wide=wide,
            wide_k=wide_k,
            nucleus=self._select(seats, is_nucleus, self._vocab_size),
            open=self._select(seats, is_open, self._vocab_size),
        )

    def _settings(self, seats: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return np.stack([self._temperature[seats], self._top_k[seats], self._top_p[seats], self._min_p[seats]])

    def _select(
        self, seats: npt.NDArray[np.int64], is_chosen: npt.NDArray[np.bool_], num_candidates: int
    ) -> _Group | None:
        if not is_chosen.any():
            return None
        places = indices_on_device(np.flatnonzero(is_chosen).tolist(), self._device)
        return _Group(places, self._truncation(seats[is_chosen], num_candidates))

    def _truncation(self, seats: npt.NDArray[np.int64], num_candidates: int) -> Truncation:
        settings = self._settings(seats)
        temperature, top_k, top_p, min_p = array_on_device(settings, self._device).unsqueeze(-1)
        return Truncation(
            temperature=temperature.float(),
            top_k=top_k.to(torch.int64),
            top_p=top_p,
            min_p=min_p.float(),
            uses_top_k=bool((settings[1] < num_candidates).any()),
            uses_top_p=bool((settings[2] < 1).any()),
            uses_min_p=bool((settings[3] > 0).any()),
        )


def _weights(candidates: Candidates, truncation: Truncation) -> Tensor:
    return relative_weights(candidates.logits, candidates.logits[:, :1], truncation)


def _put(chosen: Best, part: _Part, best: Best) -> None:
    chosen.token_ids.index_copy_(0, part.places, best.token_ids)
    chosen.row_max.index_copy_(0, part.places, best.row_max.to(chosen.row_max.dtype))
