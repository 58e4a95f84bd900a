"""Tokens sampled behind drafts follow the same law as without: 200,000 draws without a seed."""

import numpy as np
import torch

from facet.sampling_params import SamplingParams
from tests.sampling.builders import chi_square, chi_square_limit, make_sampler

NUM_SEATS, NUM_TOKENS, NUM_DRAFTS = 2000, 100, 3
LAW = np.array([0.45, 0.25, 0.14, 0.08, 0.05, 0.03])


def test_two_hundred_thousand_draws_behind_drafts_follow_the_law() -> None:
    """Drafts are the likeliest token, as those of a drafter would be, so many are accepted; a rule that lets them in
    more often than they are sampled would show at once."""
    sampler = make_sampler(len(LAW), num_seats=NUM_SEATS)
    seats = range(NUM_SEATS)
    for seat in seats:
        sampler.add_request(seat, SamplingParams(temperature=1.0), [])
    logits = torch.from_numpy(np.log(LAW)).float().repeat(NUM_SEATS * (1 + NUM_DRAFTS), 1)
    num_drafts = np.full(NUM_SEATS, NUM_DRAFTS, np.int64)
    drafts = np.tile(np.array([0, 0, 1]), NUM_SEATS)
    said: list[list[int]] = [[] for _ in seats]
    num_accepted = 0
    while min(map(len, said)) < NUM_TOKENS:
        runs = sampler.sample_runs(logits.clone(), seats, num_drafts, drafts).tokens.to_host()
        for seat, token_ids in enumerate(runs.runs(num_drafts.tolist(), drafts.tolist()).token_ids):
            num_accepted += len(token_ids) - 1
            said[seat] += token_ids
            sampler.recount(seat, len(said[seat]))
    # The first so many of each seat: which are these does not depend on what they are.
    tokens = np.array([own[:NUM_TOKENS] for own in said])
    assert num_accepted > 50_000
    counts = np.bincount(tokens.ravel(), minlength=len(LAW))
    assert chi_square(counts, LAW * tokens.size) < chi_square_limit(len(LAW) - 1)
    # Neighbours are independent, accepted together or not. Each token is in one pair, or pairs would not be.
    pairs = np.bincount((tokens[:, 1::2] * len(LAW) + tokens[:, ::2]).ravel(), minlength=len(LAW) ** 2)
    expected = np.outer(LAW, LAW).ravel() * tokens[:, 1::2].size
    assert chi_square(pairs, expected) < chi_square_limit(len(LAW) ** 2 - 1)
