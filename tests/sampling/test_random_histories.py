"""Requests with any settings arrive, run, are preempted and leave in any order; every token is the reference's."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from facet.sampling import Fault
from facet.sampling_params import SamplingParams
from tests.sampling.builders import make_sampler, sampling_params
from tests.sampling.reference import log_softmax, possible_choices, processed_logits, ranked, rounding_errors

VOCAB_SIZE = 37
NUM_SEATS = 5
EOS = (0, 9)


class Life:
    """One request as the test follows it."""

    def __init__(self, number: int, params: SamplingParams, prompt: list[int]) -> None:
        self.number = number
        self.params = params
        self.prompt = prompt
        self.output: list[int] = []

    def logits(self, num_drafts: int = 0) -> np.ndarray:
        """Depends on the request and its position alone; quarter steps, so that there are ties."""
        digest = hashlib.sha256(f"{self.number} {len(self.output) + num_drafts}".encode()).digest()
        generator = np.random.default_rng(list(digest))
        return np.round(generator.normal(scale=2.0, size=VOCAB_SIZE) * 4) / 4

    def choices(self, raw: np.ndarray, drafts: Sequence[int] = ()) -> set[int]:
        """The tokens that may follow; none where nothing is allowed."""
        output = [*self.output, *drafts]
        expected = processed_logits(list(raw), self.params, self.prompt, output, EOS)
        if not np.isfinite(expected.max()):
            return set()
        errors = rounding_errors(list(raw), self.params, self.prompt, output)
        return possible_choices(expected, self.params, position=len(output), errors=errors)


class Histories(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.sampler = make_sampler(VOCAB_SIZE, NUM_SEATS)
        self.running: dict[int, Life] = {}
        self.preempted: list[Life] = []
        self.uncounted: set[int] = set()
        self.num_requests = 0

    def _enter(self, life: Life, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from(sorted(set(range(NUM_SEATS)) - set(self.running))))
        self.sampler.add_request(seat, life.params, life.prompt, tuple(life.output), eos_token_ids=EOS)
        self.running[seat] = life

    @precondition(lambda self: len(self.running) < NUM_SEATS)
    @rule(
        params=sampling_params(VOCAB_SIZE),
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=6),
        data=st.data(),
    )
    def arrive(self, params: SamplingParams, prompt: list[int], data: st.DataObject) -> None:
        self.num_requests += 1
        self._enter(Life(self.num_requests, params, prompt), data)

    @precondition(lambda self: self.preempted and len(self.running) < NUM_SEATS)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self._enter(self.preempted.pop(0), data)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), comes_back=st.booleans())
    def leave(self, data: st.DataObject, comes_back: bool) -> None:
        seat = data.draw(st.sampled_from(sorted(self.running)))
        life = self.running[seat]
        self._remove(seat)
        if comes_back:
            self.preempted.append(life)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), everyone=st.booleans())
    def step(self, data: st.DataObject, everyone: bool) -> None:
        seats = data.draw(st.permutations(sorted(self.running)))
        seats = seats if everyone else seats[: data.draw(st.integers(1, len(seats)))]
        lives = [self.running[seat] for seat in seats]
        self._recount(seats)
        logits = torch.from_numpy(np.stack([life.logits() for life in lives])).float()
        sampled = self.sampler.sample(logits.clone(), seats)
        self.sampler.accept(seats, sampled.token_ids)
        host = sampled.to_host()
        for place, (seat, life) in enumerate(zip(seats, lives, strict=True)):
            raw = logits[place].double().numpy()
            choices = life.choices(raw)
            token_id = host.token_ids[place]
            if not choices:
                assert host.faults[place] is Fault.NOTHING_ALLOWED
                self._remove(seat)
                continue
            assert token_id is not None
            assert token_id in choices
            self._check_logprobs(life, raw, token_id, host.logprobs[place])
            life.output.append(token_id)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def step_with_drafts(self, data: st.DataObject) -> None:
        """Some drafts are what the reference would say, some are not; what holds is what no drafts would have given."""
        seats = data.draw(st.permutations(sorted(self.running)))
        seats = seats[: data.draw(st.integers(1, len(seats)))]
        drafts = [self._draft(self.running[seat], data) for seat in seats]
        self._recount(seats)
        rows = [
            self.running[seat].logits(offset)
            for seat, own in zip(seats, drafts, strict=True)
            for offset in range(len(own) + 1)
        ]
        logits = torch.from_numpy(np.stack(rows)).float()
        num_drafts = [len(own) for own in drafts]
        flat = [draft for own in drafts for draft in own]
        sampled = self.sampler.sample_runs(logits.clone(), seats, np.array(num_drafts), np.array(flat, np.int64))
        self.uncounted.update(seats)
        runs = sampled.tokens.to_host().runs(num_drafts, flat)
        last_token_ids = sampled.last_token_ids.tolist()
        place = 0
        for index, (seat, own) in enumerate(zip(seats, drafts, strict=True)):
            life, token_ids = self.running[seat], runs.token_ids[index]
            logprobs = None if runs.logprobs is None else runs.logprobs[index]
            for offset, token_id in enumerate(token_ids):
                raw = logits[place + offset].double().numpy()
                assert token_id in life.choices(raw)
                self._check_logprobs(life, raw, token_id, None if logprobs is None else logprobs[offset])
                life.output.append(token_id)
            fault = None if runs.faults is None else runs.faults[index]
            assert list(token_ids[: len(token_ids) - (fault is None)]) == own[: len(token_ids) - (fault is None)]
            if fault is not None:
                assert fault == Fault.NOTHING_ALLOWED.value
                self._remove(seat)
            else:
                assert last_token_ids[index] == token_ids[-1]
                assert len(token_ids) == len(own) + 1 or token_ids[-1] != own[len(token_ids) - 1]
            place += len(own) + 1

    def _draft(self, life: Life, data: st.DataObject) -> list[int]:
        drafts: list[int] = []
        for is_right in data.draw(st.lists(st.sampled_from([True, True, False]), max_size=4)):
            choices = life.choices(life.logits(len(drafts)), drafts) if is_right else ()
            if choices:
                drafts.append(min(choices))
            else:
                drafts.append(data.draw(st.integers(0, VOCAB_SIZE - 1)))
        return drafts

    def _recount(self, seats: list[int]) -> None:
        for seat in self.uncounted & set(seats):
            self.sampler.recount(seat, len(self.running[seat].output))
        self.uncounted -= set(seats)

    def _remove(self, seat: int) -> None:
        self.sampler.remove_request(seat)
        self.uncounted.discard(seat)
        del self.running[seat]

    def _check_logprobs(self, life: Life, raw: np.ndarray, token_id: int, entry: object) -> None:
        if life.params.logprobs is None:
            assert entry is None
            return
        num_top = VOCAB_SIZE if life.params.logprobs == -1 else life.params.logprobs
        order, logprobs = ranked(raw), log_softmax(raw)
        assert entry is not None
        found = (entry.token_ids, entry.ranks)  # type: ignore[attr-defined]
        assert found == ([token_id, *order[:num_top]], [order.index(token_id) + 1, *range(1, num_top + 1)])
        expected = [logprobs[token] for token in found[0]]
        assert entry.logprobs == pytest.approx(expected, abs=1e-5)  # type: ignore[attr-defined]


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
