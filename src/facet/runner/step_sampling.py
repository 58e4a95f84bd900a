"""Turns what a step computed into tokens: logits of the wanted rows, sampling, log-probabilities of prompts.

Sampled ids stay on the device, by seat, and feed the next step from there; the host is sent a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.model.gemma import Gemma
from facet.runner.batch import ranges
from facet.runner.draft_ahead import DraftAhead, DraftsInFlight
from facet.runner.seat_state import SeatState
from facet.runner.tail import Tail, TailReader, UnseenDrafts
from facet.sampling import GrammarMask, LogprobTensors, SampledTokens, Sampler, TokensInFlight, grammar_mask
from facet.sampling_params import SamplingParams
from facet.step import Admission, StepMasks, StepPlan, StepResult
from facet.transfer import array_on_device, arrays_on_device

# Prompt log-probabilities look at every row's logits; a few rows at a time keeps a large vocabulary affordable.
PROMPT_LOGITS_AT_ONCE = 64


class ComputedRows(NamedTuple):
    """The rows of a step whose logits are wanted."""

    hidden: Tensor  # [rows, hidden]
    logits: Tensor | None  # [rows, vocab], where they were made along the way


class _Places(NamedTuple):
    """Where the tokens of a plan's entries are sampled, which is the same from step to step while the entries are."""

    entries: tuple[bytes, ...]  # what it was made of
    seats: tuple[int, ...]  # of entries that sample
    num_drafts: NDArray[np.int32]  # of each of them
    device_seats: Tensor
    rows: Tensor  # among the rows computed, those that are sampled: of each seat one, and one for each draft
    seats_of_rows: Tensor


class _Chosen(NamedTuple):
    """The tokens of a step on the device, and of each seat the last that holds."""

    tokens: SampledTokens
    last_token_ids: Tensor  # [seats]
    last_rows: Tensor  # [seats]: among those computed, the row it was chosen from
    num_emitted: Tensor | None  # [seats]: how many hold; None: one each


@dataclass(frozen=True, slots=True)
class SampledStep:
    """A step all of whose work has been launched."""

    plan: StepPlan
    tokens: TokensInFlight
    prompt_logprobs: tuple[tuple[int, tuple[LogprobTensors, ...]], ...]
    drafts: DraftsInFlight | None  # behind the tokens; None: nobody drafts
    unseen: UnseenDrafts | None = None  # of a step that is ahead

    def wait(self) -> StepResult:
        """The outcome, once the device is done with it. The drafts may still be on their way."""
        plan, host = self.plan, self.tokens.wait()
        num_drafts = plan.num_drafts[plan.samples].tolist() if plan.has_drafts else None
        drafted = plan.draft_token_ids.tolist() if self.unseen is None else self.unseen.wait()
        runs = host.runs(num_drafts, drafted)
        return StepResult(
            token_ids=runs.token_ids,
            faults=runs.faults,
            logprobs=runs.logprobs,
            draft_token_ids=drafted,
            prompt_logprobs=tuple(
                (entry, [logprob for part in parts for logprob in part.to_list()])
                for entry, parts in self.prompt_logprobs
            ),
        )


class StepSampling:
    """Owns the sampler, and the last token of every seat."""

    def __init__(
        self, model: Gemma, seats: SeatState, *, max_num_drafts: int = 0, made_up_rates: Sequence[float] = ()
    ) -> None:
        """`max_num_drafts`: in a step that finds its tokens among the last ones. The rates are for the sampler."""
        self.draft_ahead: DraftAhead | None = None
        self._model = model
        self._seats = seats
        self._device = model.placement.device
        self._sampler = Sampler(
            num_seats=seats.num_seats,
            vocab_size=model.spec.vocab_size,
            device=self._device,
            never_sampled=model.spec.media_token_ids,
            group=model.placement.group,
            made_up_rates=made_up_rates,
        )
        # The last token of every seat, and behind them the drafts of a captured step.
        self.last_token_ids = torch.zeros(seats.num_seats + 1 + max_num_drafts, dtype=torch.int64, device=self._device)
        self._num_prompt_logprobs: dict[int, int] = {}  # by seat
        self._uncounted: set[int] = set()  # seats that had drafts when they were last sampled
        self._last_places: _Places | None = None
        self._tail: Tail | None = None  # of the last step, if a drafter goes on behind it
        self._tail_reader = TailReader(self._device)

    def release(self, seat: int) -> None:
        self._sampler.remove_request(seat)
        self._num_prompt_logprobs.pop(seat, None)
        self._uncounted.discard(seat)

    def admit(self, admission: Admission) -> None:
        request = admission.request
        self._sampler.add_request(
            admission.seat,
            request.sampling,
            request.prompt_token_ids,
            admission.output_token_ids,
            eos_token_ids=request.eos_token_ids,
            thought=request.thought,
        )
        if request.sampling.prompt_logprobs is not None:
            self._num_prompt_logprobs[admission.seat] = request.sampling.prompt_logprobs

    def unseen_drafts(self, plan: StepPlan) -> UnseenDrafts:
        """The drafts of a step that is ahead."""
        assert self._tail is not None, "nobody has drafted"
        return self._tail_reader.unseen(plan, self._tail)

    def sample(
        self,
        plan: StepPlan,
        computed: ComputedRows,
        masks: StepMasks | None,
        unseen: UnseenDrafts | None = None,
    ) -> SampledStep:
        if self._uncounted:
            self._recount(plan)
        if plan.has_drafts:
            sampled = self._choose_along_drafts(plan, computed, masks, unseen)
        else:
            sampled = self._choose(plan, computed, masks)
        tokens = sampled.tokens.start_copy()
        drafts = self._draft(plan, computed, sampled, unseen)
        return SampledStep(plan, tokens, self._prompt_logprobs(plan, computed.hidden), drafts, unseen)

    def _draft(
        self, plan: StepPlan, computed: ComputedRows, sampled: "_Chosen", unseen: UnseenDrafts | None
    ) -> DraftsInFlight | None:
        self._tail = None
        if not plan.num_to_draft or not len(sampled.last_rows):
            return None
        assert self.draft_ahead is not None, "nobody is there to draft"
        num_accepted = None if sampled.num_emitted is None else (sampled.num_emitted - 1).to(torch.int32)
        num_more = num_accepted
        if num_accepted is not None and unseen is not None and unseen.num_more is not None:
            num_more = num_accepted + unseen.num_more
        hidden = computed.hidden[sampled.last_rows]
        guesses = self.draft_ahead.draft(plan, sampled.last_token_ids, hidden, num_more)
        copy = DraftsInFlight.start_copy(guesses)
        self._tail = Tail(tuple(plan.seats[plan.samples].tolist()), num_accepted, guesses, copy)
        return copy

    def sample_nothing(self, params: SamplingParams) -> None:
        """Samples nothing real, so that kernels are compiled."""
        self._sampler.add_request(0, params, (0,))
        self._sampler.sample(self._no_logits(), (0,))
        self._sampler.remove_request(0)

    def list_nothing(self, num_top: int) -> None:
        """Lists log-probabilities of nothing real, so that kernels are compiled. The token is given: where kernels are
        only compiled, chosen ones are whatever was in memory, and nothing may be looked up by them."""
        token_ids = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._sampler.prompt_logprobs(self._no_logits(), token_ids, num_top)

    def _no_logits(self) -> Tensor:
        return torch.zeros(1, self._model.share.vocab_size, dtype=torch.float32, device=self._device)

    def _choose(self, plan: StepPlan, computed: ComputedRows, masks: StepMasks | None) -> "_Chosen":
        """Chooses tokens: the last logit row of every entry that samples becomes its next token."""
        places = self._places(plan)
        logits, grammar = self._logits(computed, places.rows), self._mask(masks, places)
        sampled = self._sampler.sample(logits, places.seats, grammar=grammar)
        self._sampler.accept(places.seats, sampled.token_ids)
        self.last_token_ids[places.device_seats] = sampled.token_ids
        return _Chosen(sampled, sampled.token_ids, places.rows, None)

    def _choose_along_drafts(
        self, plan: StepPlan, computed: ComputedRows, masks: StepMasks | None, unseen: UnseenDrafts | None
    ) -> "_Chosen":
        """Like `_choose`, with a row for every draft: the host learns later how many of an entry's tokens hold."""
        places = self._places(plan)
        logits, grammar = self._logits(computed, places.rows), self._mask(masks, places)
        drafts, further_on = (plan.draft_token_ids, None) if unseen is None else (unseen.token_ids, unseen.further_on)
        sampled = self._sampler.sample_runs(
            logits, places.seats, places.num_drafts, drafts, further_on=further_on, grammar=grammar
        )
        self.last_token_ids[places.device_seats] = sampled.last_token_ids
        self._uncounted.update(places.seats)
        return _Chosen(sampled.tokens, sampled.last_token_ids, places.rows[sampled.last_places], sampled.num_emitted)

    def _places(self, plan: StepPlan) -> _Places:
        """The places of a plan, made once for the same entries: in most steps they are those of the step before."""
        parts = (plan.seats, plan.samples, plan.num_logit_rows, plan.num_drafts)
        entries = tuple(part.tobytes() for part in parts)
        if self._last_places is None or self._last_places.entries != entries:
            seats, num_drafts = plan.seats[plan.samples].astype(np.int64), plan.num_drafts[plan.samples]
            ends = np.cumsum(plan.num_logit_rows, dtype=np.int32)[plan.samples]
            rows = ranges(ends - num_drafts - 1, num_drafts + 1).astype(np.int64)
            on_device = arrays_on_device((seats, rows, np.repeat(seats, num_drafts + 1)), self._device)
            self._last_places = _Places(entries, tuple(seats.tolist()), num_drafts, *on_device)
        return self._last_places

    def _logits(self, computed: ComputedRows, rows: Tensor) -> Tensor:
        if computed.logits is None:
            return self._model.logits(computed.hidden[rows])
        return computed.logits if len(rows) == len(computed.logits) else computed.logits[rows]

    def _mask(self, masks: StepMasks | None, places: _Places) -> GrammarMask | None:
        return None if masks is None else grammar_mask(masks, self.last_token_ids, places.seats_of_rows)

    def _recount(self, plan: StepPlan) -> None:
        """Tells the sampler where requests go on, which says how many of their drafts were right."""
        ends = plan.num_computed + plan.num_scheduled - plan.num_drafts
        for seat, end, samples in zip(plan.seats.tolist(), ends.tolist(), plan.samples.tolist(), strict=True):
            if samples and seat in self._uncounted:
                self._uncounted.remove(seat)
                self._sampler.recount(seat, end - int(self._seats.num_prompt[seat]))

    def _prompt_logprobs(self, plan: StepPlan, hidden: Tensor) -> tuple[tuple[int, tuple[LogprobTensors, ...]], ...]:
        """How likely the model held the prompt token that follows each row, for entries whose every row has logits."""
        if not self._num_prompt_logprobs:
            return ()
        wanted = []
        ends = np.cumsum(plan.num_logit_rows)
        for entry, (seat, num_logit_rows) in enumerate(
            zip(plan.seats.tolist(), plan.num_logit_rows.tolist(), strict=True)
        ):
            if seat not in self._num_prompt_logprobs or num_logit_rows == 0:
                continue
            first = int(plan.num_computed[entry] + plan.num_scheduled[entry]) - num_logit_rows
            count = min(num_logit_rows, int(self._seats.num_prompt[seat]) - 1 - first)
            if count <= 0:
                continue
            start = int(ends[entry]) - num_logit_rows
            following = array_on_device(self._seats.given_tokens(seat, first + 1, count), self._device)
            parts = []
            for offset in range(0, count, PROMPT_LOGITS_AT_ONCE):
                size = min(PROMPT_LOGITS_AT_ONCE, count - offset)
                logits = self._model.logits(hidden[start + offset : start + offset + size])
                parts.append(
                    self._sampler.prompt_logprobs(
                        logits, following[offset : offset + size], self._num_prompt_logprobs[seat]
                    )
                )
            wanted.append((entry, tuple(parts)))
        return tuple(wanted)
