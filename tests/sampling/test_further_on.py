"""A sampler that is told the least that seats can have, and on the device by how much they are further on, samples what
one does that is told how far they are."""

from dataclasses import replace

import numpy as np
import torch

from facet.sampling import FurtherOn, SampledTokens, Sampler
from facet.sampling_params import SamplingParams
from facet.thoughts import ThoughtTokens
from tests.sampling.builders import make_sampler

VOCAB_SIZE, NUM_STEPS = 12, 40
OPEN = SamplingParams(temperature=1.0, seed=3, max_tokens=None)
SETTINGS = (
    OPEN,
    replace(OPEN, seed=4, top_k=5, logprobs=1),
    replace(OPEN, temperature=0.0),
    replace(OPEN, seed=5, min_tokens=11),
    replace(OPEN, seed=6, min_tokens=30, stop_token_ids=(1,)),
    replace(OPEN, seed=7, repetition_penalty=1.5, frequency_penalty=0.02),
    replace(OPEN, seed=8, presence_penalty=0.8),
    replace(OPEN, seed=9, bad_words_token_ids=((0, 1), (1, 0, 0))),
    replace(OPEN, seed=10, thinking_token_budget=9),
)
NUM_DRAFTS = np.array([2, 3, 1, 2, 2, 3, 0, 3, 2])
SEATS = range(len(SETTINGS))


def full_sampler() -> Sampler:
    sampler = make_sampler(VOCAB_SIZE, num_seats=len(SETTINGS))
    for seat, params in enumerate(SETTINGS):
        sampler.add_request(seat, params, [5, 6], eos_token_ids=(0,), thought=ThoughtTokens(open_id=2, close_id=3))
    return sampler


def test_who_is_further_on_than_the_host_knows_gets_the_same_tokens() -> None:
    exact, least = full_sampler(), full_sampler()
    random = np.random.default_rng(1)
    num_drafts = NUM_DRAFTS.tolist()
    # Three tokens are likely, and drafts are among them.
    likely = torch.zeros(VOCAB_SIZE).index_fill_(0, torch.tensor([0, 1, 2]), 4.0)
    counts = [0] * len(SETTINGS)
    num_more = [0] * len(SETTINGS)
    all_more = set[int]()
    for _ in range(NUM_STEPS):
        logits = likely + torch.from_numpy(random.normal(size=(sum(num_drafts) + len(SETTINGS), VOCAB_SIZE))).float()
        drafts = random.integers(0, 3, sum(num_drafts))
        for seat in SEATS:
            exact.recount(seat, counts[seat])
            least.recount(seat, counts[seat] - num_more[seat])
        further_on = FurtherOn(
            torch.tensor(num_more, dtype=torch.int32).repeat_interleave(torch.tensor(num_drafts) + 1), 3
        )
        expected = exact.sample_runs(logits.clone(), SEATS, NUM_DRAFTS, drafts)
        got = least.sample_runs(logits.clone(), SEATS, NUM_DRAFTS, torch.from_numpy(drafts), further_on=further_on)
        assert of_host(got.tokens) == of_host(expected.tokens)
        assert got.num_emitted.tolist() == expected.num_emitted.tolist()
        assert got.last_token_ids.tolist() == expected.last_token_ids.tolist()
        num_more = [count - 1 for count in expected.num_emitted.tolist()]
        all_more |= set(num_more)
        counts = [count + 1 + more for count, more in zip(counts, num_more, strict=True)]
    assert all_more == {0, 1, 2, 3}


def of_host(tokens: SampledTokens) -> tuple[object, ...]:
    host = tokens.to_host()
    return host.token_ids, host.faults, [None if entry is None else entry.token_ids for entry in host.logprobs]
