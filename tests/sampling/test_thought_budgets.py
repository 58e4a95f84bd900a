"""Budgets of thoughts in the sampler: with drafts, in company and after a preemption, every token is the rule's."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from facet.sampling import Fault
from facet.sampling_params import SamplingParams
from facet.thoughts import ThoughtCounter, ThoughtTokens
from tests.sampling.builders import make_sampler

VOCAB_SIZE = 12
OPENS, CLOSES, END = 3, 4, 5
NUM_SEATS = 6


def thought(*, is_open: bool = False) -> ThoughtTokens:
    return ThoughtTokens(open_id=OPENS, close_id=CLOSES, turn_end_ids=(END,), is_open=is_open)


@dataclass
class Life:
    budget: int | None
    is_open: bool
    outputs: list[int] = field(default_factory=list)

    def logits(self, choose: random.Random) -> list[float]:
        """Thoughts open often and close by themselves now and then."""
        values = [choose.uniform(0, 1) for _ in range(VOCAB_SIZE)]
        values[OPENS] += choose.choice([0, 1])
        values[CLOSES] += choose.choice([-1, 0.1])
        return values

    def expected(self, logits: list[float], drafts: list[int]) -> int:
        counter = ThoughtCounter(thought(is_open=self.is_open))
        counter.push_all([*self.outputs, *drafts])
        values = list(logits)
        if self.budget is not None and counter.count >= self.budget:
            if counter.is_open:
                return CLOSES
            values[OPENS] = -9.0
        return int(np.argmax(values))


@pytest.mark.parametrize("seed", range(3))
def test_every_token_follows_the_rule(seed: int) -> None:
    choose = random.Random(seed)
    sampler = make_sampler(VOCAB_SIZE, NUM_SEATS)
    lives: dict[int, Life] = {}
    waiting: list[Life] = []
    num_forced = 0
    for _ in range(250):
        for seat in list(lives):
            if choose.random() < 0.06:
                life = lives.pop(seat)
                sampler.remove_request(seat)
                waiting += [life] * (choose.random() < 0.7)
        while len(lives) < NUM_SEATS and choose.random() < 0.7:
            budget = choose.choice([None, 0, 1, 2, 5, 9])
            life = waiting.pop() if waiting else Life(budget, choose.random() < 0.5)
            seat = choose.choice([seat for seat in range(NUM_SEATS) if seat not in lives])
            lives[seat] = life
            params = SamplingParams(temperature=0.0, thinking_token_budget=life.budget)
            sampler.add_request(seat, params, [], life.outputs, thought=thought(is_open=life.is_open))
        if not lives:
            continue
        seats = choose.sample(sorted(lives), choose.randint(1, len(lives)))
        has_drafts = choose.random() < 0.5
        drafts = [
            [choose.choice([*range(VOCAB_SIZE), OPENS, CLOSES]) for _ in range(choose.randint(0, 4) * has_drafts)]
            for _ in seats
        ]
        logits = [
            [lives[seat].logits(choose) for _ in range(1 + len(own))] for seat, own in zip(seats, drafts, strict=True)
        ]
        rows = torch.tensor([row for own in logits for row in own])
        counts = np.array([len(own) for own in drafts])
        flat = np.array([token for own in drafts for token in own], np.int64)
        if counts.sum():
            host = sampler.sample_runs(rows, seats, counts, flat).tokens.to_host()
        else:
            sampled = sampler.sample(rows, seats)
            sampler.accept(seats, sampled.token_ids)
            host = sampled.to_host()
        runs = host.runs(counts.tolist(), flat.tolist()).token_ids
        for seat, own, values, run in zip(seats, drafts, logits, runs, strict=True):
            life = lives[seat]
            for place, token_id in enumerate(run):
                expected = life.expected(values[place], own[:place])
                assert token_id == expected
                num_forced += token_id == CLOSES and int(np.argmax(values[place])) != CLOSES
            life.outputs += run
            sampler.recount(seat, len(life.outputs))
    assert num_forced > 20


def test_nothing_keeps_a_thought_from_being_closed() -> None:
    forbidding = {
        "bias": {"logit_bias": {CLOSES: -100.0}},
        "allowed": {"allowed_token_ids": [7, 8]},
        "bad word": {"bad_words_token_ids": [[CLOSES]]},
        "nothing left": {"allowed_token_ids": [CLOSES], "bad_words_token_ids": [[CLOSES, 1], [2, CLOSES]]},
        "min_tokens": {"min_tokens": 5, "stop_token_ids": [CLOSES]},
        "sampled": {"temperature": 1.0, "top_p": 0.5, "seed": 3},
    }
    sampler = make_sampler(VOCAB_SIZE, len(forbidding))
    for seat, settings in enumerate(forbidding.values()):
        params = SamplingParams(**{"temperature": 0.0, "thinking_token_budget": 0, "logprobs": 0, **settings})
        sampler.add_request(seat, params, [], thought=thought(is_open=True))
    host = sampler.sample(torch.zeros(len(forbidding), VOCAB_SIZE), range(len(forbidding))).to_host()
    assert host.token_ids == (CLOSES,) * len(forbidding)
    # How likely the model held it, before any rule.
    assert [entry.logprobs[0] for entry in host.logprobs] == pytest.approx([-np.log(VOCAB_SIZE)] * len(forbidding))


def test_broken_logits_are_not_hidden() -> None:
    sampler = make_sampler(VOCAB_SIZE, 1)
    sampler.add_request(0, SamplingParams(thinking_token_budget=0), [], thought=thought(is_open=True))
    host = sampler.sample(torch.full((1, VOCAB_SIZE), float("nan")), [0]).to_host()
    assert host.faults == (Fault.NON_FINITE_LOGITS,)


def test_a_turns_end_closes_a_thought() -> None:
    counter = ThoughtCounter(thought())
    counter.push_all([OPENS, 7, OPENS, 8, END, 9, CLOSES, 9, OPENS, 1, CLOSES, 2])
    assert (counter.count, counter.is_open) == (4, False)
