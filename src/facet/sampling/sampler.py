"""Chooses token ids for a batch of logits, with one small state object per feature.

Each feature keeps what it needs by seat, works only for the seats that ask for it, and costs nothing
when none of a step's seats does. A new feature is a new file with the same verbs and a line in
`Sampler.__init__`. Knows nothing of requests' text, of the scheduler, or of how the logits came about.
"""

import math
from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.layers.rank_group import RankGroup
from facet.sampling.allowed_tokens import AllowedTokens
from facet.sampling.bad_words import BadWords
from facet.sampling.batch_seats import Arrival, BatchSeats, FurtherOn, RunLayout
from facet.sampling.choice import Choice
from facet.sampling.grammar import GrammarMask
from facet.sampling.logit_bias import LogitBias
from facet.sampling.logprobs import Logprobs, LogprobTensors, prompt_logprobs
from facet.sampling.made_up_acceptance import MadeUpAcceptance
from facet.sampling.min_tokens import MinTokens
from facet.sampling.penalties import Penalties
from facet.sampling.result import SampledRuns, SampledTokens
from facet.sampling.seeds import Seeds
from facet.sampling.thought_budgets import ThoughtBudgets
from facet.sampling.vocabulary import make_vocabulary
from facet.sampling_params import SamplingParams
from facet.thoughts import ThoughtTokens
from facet.transfer import indices_on_device


class _PerRequest(Protocol):
    """Something that keeps state for the requests that are here."""

    def add_request(self, arrival: Arrival) -> None: ...
    def remove_request(self, seat: int) -> None: ...


class _Counting(Protocol):
    """Something that counts tokens on the host."""

    def recount(self, seat: int, num_outputs: int) -> None: ...


class _WithHistory(Protocol):
    """Something that keeps, on the device, what was said before."""

    def accept_runs(self, batch: BatchSeats, token_ids: Tensor, num_emitted: Tensor) -> None: ...


class _LogitsFeature(_PerRequest, Protocol):
    """Something that changes logits before a token is chosen."""

    def is_active(self, batch: BatchSeats) -> bool: ...
    def apply(self, logits: Tensor, batch: BatchSeats) -> None: ...
    def accept(self, batch: BatchSeats, token_ids: Tensor) -> None: ...


class Sampler:
    def __init__(
        self,
        *,
        num_seats: int,
        vocab_size: int,
        device: torch.device,
        never_sampled: Sequence[int] = (),
        uses_kernels: bool | None = None,
        group: RankGroup | None = None,
        made_up_rates: Sequence[float] = (),
    ) -> None:
        """`never_sampled` are tokens that no request may choose. `made_up_rates`: see `MadeUpAcceptance`.

        `uses_kernels`: choose by `facet.kernels.token_choice`; None: on a GPU. Both ways choose the same tokens. The
        kernels are for a vocabulary that is all here; where the ranks of `group` share it, they are not used.
        """
        self._vocabulary = make_vocabulary(vocab_size, group)
        self._device = device
        held = self._vocabulary.held
        if held is not None:
            never_sampled = [token_id - held.start for token_id in never_sampled if token_id in held]
        self._never_sampled = indices_on_device(never_sampled, device) if never_sampled else None
        self._occupied: set[int] = set()
        self._num_seats = num_seats
        self._num_columns = vocab_size if held is None else len(held)
        self._batch = BatchSeats((), device)
        self._run_layout: tuple[tuple[tuple[int, ...], bytes], RunLayout] | None = None  # the last, by what it is of
        self._made_up = MadeUpAcceptance(made_up_rates) if made_up_rates else None
        self._logprobs = Logprobs(self._vocabulary)
        self._seeds = Seeds(num_seats)
        if uses_kernels is None:
            uses_kernels = device.type == "cuda" and held is None
        self._choice = Choice(num_seats, self._vocabulary, device, uses_kernels=uses_kernels)
        bad_words, min_tokens = BadWords(num_seats, device), MinTokens()
        penalties = Penalties(num_seats, vocab_size, device)
        self._thought_budgets = ThoughtBudgets(num_seats, device)
        self._features: tuple[_LogitsFeature, ...] = (  # applied in this order
            AllowedTokens(vocab_size, device),
            bad_words,
            min_tokens,
            LogitBias(),
            penalties,
            self._thought_budgets,
        )
        self._counting: tuple[_Counting, ...] = (self._seeds, min_tokens, penalties)
        self._histories: tuple[_WithHistory, ...] = (bad_words, penalties, self._thought_budgets)
        self._parts: tuple[_PerRequest, ...] = (self._logprobs, self._seeds, self._choice, *self._features)

    def add_request(
        self,
        seat: int,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int] = (),
        *,
        eos_token_ids: Collection[int] = (),
        thought: ThoughtTokens | None = None,
    ) -> None:
        """Give a request its seat. `output_token_ids` are those it already has, when it resumes."""
        assert 0 <= seat < self._num_seats, f"seat {seat} of {self._num_seats}"
        assert seat not in self._occupied, f"seat {seat} still belongs to another request"
        assert params.n == 1, "a request for several outputs becomes several requests; see SamplingParams.for_output"
        self._occupied.add(seat)
        self._batch = BatchSeats((), self._device)
        arrival = Arrival(
            seat=seat,
            params=params,
            prompt_token_ids=prompt_token_ids,
            output_token_ids=output_token_ids,
            eos_token_ids=eos_token_ids,
            thought=thought,
        )
        for part in self._parts:
            part.add_request(arrival)

    def remove_request(self, seat: int) -> None:
        """Free the seat. Steps already launched still read, in stream order, what it held on the device."""
        assert seat in self._occupied, f"seat {seat} belongs to no request"
        self._occupied.remove(seat)
        self._batch = BatchSeats((), self._device)
        self._run_layout = None
        for part in self._parts:
            part.remove_request(seat)

    def sample(self, logits: Tensor, seats: Sequence[int], *, grammar: GrammarMask | None = None) -> SampledTokens:
        """One token for each row of logits [len(seats), vocab]; seats[i] is the seat that logits[i] belongs to.

        The logits may be float32, bfloat16 or float16, and may be overwritten. Nothing is remembered of the
        tokens until `accept`.
        """
        assert logits.shape == (len(seats), self._num_columns), (
            f"logits of shape {tuple(logits.shape)} for {len(seats)} rows of {self._num_columns} tokens"
        )
        return self._sample(logits, self._batch_of(seats), grammar)

    def sample_runs(
        self,
        logits: Tensor,
        seats: Sequence[int],
        num_drafts: NDArray[np.integer],
        drafts: NDArray[np.int64] | Tensor,
        *,
        further_on: FurtherOn | None = None,
        grammar: GrammarMask | None = None,
    ) -> SampledRuns:
        """Samples seats with drafts at every place: seat i has 1 + num_drafts[i] rows of logits, one after the other.

        The tokens that hold are remembered on the device, as by `accept`. How many they are the host does not know:
        before the seats are sampled again, `recount` tells it, or the least that they can be if they are `further_on`.
        """
        runs = self._run_layout_of(tuple(seats), num_drafts).runs(drafts, further_on)
        batch = BatchSeats(runs.layout.seats_of_places, self._device, runs, self._vocabulary.held)
        tokens = self._sample(logits, batch, grammar)
        if self._made_up is not None:
            self._made_up.apply(tokens.token_ids, runs)
        num_emitted = runs.num_emitted(tokens.token_ids, tokens.is_finite & tokens.has_choice)
        for feature in self._histories:
            feature.accept_runs(batch, tokens.token_ids, num_emitted)
        last_places = runs.places.gather(1, num_emitted.unsqueeze(1) - 1).squeeze(1)
        return SampledRuns(tokens, tokens.token_ids[last_places], last_places, num_emitted)

    def prompt_logprobs(self, logits: Tensor, next_token_ids: Tensor, num_top: int) -> LogprobTensors:
        """The logprobs at consecutive positions of a prompt of the token that follows each."""
        return prompt_logprobs(logits, next_token_ids, num_top, self._vocabulary)

    def recount(self, seat: int, num_outputs: int) -> None:
        """Takes note of how many tokens the request in a seat has by now."""
        for feature in self._counting:
            feature.recount(seat, num_outputs)

    def _sample(self, logits: Tensor, batch: BatchSeats, grammar: GrammarMask | None) -> SampledTokens:
        if not len(batch):
            nothing = torch.zeros(0, dtype=torch.bool, device=logits.device)
            return SampledTokens(nothing.to(torch.int64), nothing, nothing, None)
        active = [feature for feature in self._features if feature.is_active(batch)]
        will_change = bool(active) or grammar is not None
        in_place = self._never_sampled is not None or (will_change and logits.dtype == torch.float32)
        raw_logits = self._logprobs.raw_logits(logits, batch, will_change=in_place)
        if self._never_sampled is not None:
            # One small launch, where a mask of the whole vocabulary would read all logits again.
            logits.index_fill_(-1, self._never_sampled, -math.inf)
        # A mask of ours could hide a NaN of the model's, so the raw logits are asked first.
        raw_max = self._vocabulary.row_max(logits) if will_change else None
        if will_change:
            logits = logits.float()
        if grammar is not None:
            grammar.apply(logits, self._vocabulary)
        for feature in active:
            feature.apply(logits, batch)
        keys = self._seeds.keys(batch) if self._choice.needs_noise(batch) else None
        chosen = self._choice.choose(logits, batch, keys, raw_max)
        self._thought_budgets.force(chosen)
        logprobs = None if raw_logits is None else raw_logits.of_tokens(chosen.token_ids)
        return SampledTokens(chosen.token_ids, chosen.is_finite, chosen.has_choice, logprobs, chosen.storage)

    def accept(self, seats: Sequence[int], token_ids: Tensor) -> None:
        """Append one token to the output of each seat. `token_ids` [len(seats)] stays on the device."""
        batch = self._batch_of(seats)
        if len(batch):
            self._seeds.accept(batch, token_ids)
            for feature in self._features:
                feature.accept(batch, token_ids)

    def _batch_of(self, seats: Sequence[int]) -> BatchSeats:
        """The seats as a batch: the same value for the same requests, so that features prepare only when a batch
        changes."""
        if self._batch.seats != tuple(seats):
            self._check_seats(seats)
            self._batch = BatchSeats(tuple(seats), self._device, held=self._vocabulary.held)
        return self._batch

    def _run_layout_of(self, seats: tuple[int, ...], num_drafts: NDArray[np.integer]) -> RunLayout:
        key = (seats, num_drafts.tobytes())
        if self._run_layout is None or self._run_layout[0] != key:
            self._check_seats(seats)
            self._run_layout = key, RunLayout.make(seats, num_drafts, self._device)
        return self._run_layout[1]

    def _check_seats(self, seats: Sequence[int]) -> None:
        assert self._occupied.issuperset(seats), f"seats {sorted(set(seats) - self._occupied)} have no request"
        assert len(set(seats)) == len(seats), "a seat may take part in a step once"
