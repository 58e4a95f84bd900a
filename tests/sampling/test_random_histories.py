"""Requests with any settings arrive, run, are preempted and leave in any order; every token is the reference's."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from facet.sampling import Fault
from facet.sampling_params import SamplingParams
from tests.sampling.builders import make_sampler, sampling_params
from tests.sampling.reference import log_softmax, possible_choices, processed_logits, ranked

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

    def logits(self) -> np.ndarray:
        """Depends on the request and its position alone; quarter steps, so that there are ties."""
        digest = hashlib.sha256(f"{self.number} {len(self.output)}".encode()).digest()
        generator = np.random.default_rng(list(digest))
        return np.round(generator.normal(scale=2.0, size=VOCAB_SIZE) * 4) / 4


class Histories(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.sampler = make_sampler(VOCAB_SIZE, NUM_SEATS)
        self.running: dict[int, Life] = {}
        self.preempted: list[Life] = []
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
        self.sampler.remove_request(seat)
        life = self.running.pop(seat)
        if comes_back:
            self.preempted.append(life)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), everyone=st.booleans())
    def step(self, data: st.DataObject, everyone: bool) -> None:
        seats = data.draw(st.permutations(sorted(self.running)))
        seats = seats if everyone else seats[: data.draw(st.integers(1, len(seats)))]
        lives = [self.running[seat] for seat in seats]
        logits = torch.from_numpy(np.stack([life.logits() for life in lives])).float()
        sampled = self.sampler.sample(logits.clone(), seats)
        self.sampler.accept(seats, sampled.token_ids)
        host = sampled.to_host()
        for place, (seat, life) in enumerate(zip(seats, lives, strict=True)):
            raw = logits[place].double().numpy()
            expected = processed_logits(list(raw), life.params, life.prompt, life.output, EOS)
            token_id = host.token_ids[place]
            if not np.isfinite(expected.max()):
                assert host.faults[place] is Fault.NOTHING_ALLOWED
                self.sampler.remove_request(seat)
                del self.running[seat]
                continue
            assert token_id in possible_choices(expected, life.params, position=len(life.output))
            assert token_id is not None
            self._check_logprobs(life, raw, token_id, host.logprobs[place])
            life.output.append(token_id)

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
