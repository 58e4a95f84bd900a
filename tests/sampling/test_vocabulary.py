"""Ranks that share the vocabulary choose what one that has it all does, to the last token."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from facet.layers.rank_group import RankGroup
from facet.sampling import GrammarMask, HostTokens, Sampler
from facet.sampling.bitmask import pack_token_ids
from facet.sampling_params import SamplingParams
from facet.thoughts import ThoughtTokens
from facet.token_logprobs import TokenLogprobs
from tests.ranks import on_ranks
from tests.sampling.builders import CPU
from tests.sampling.test_sampler import COMPANY, logits_of

VOCAB_SIZE = 1500  # that four ranks divide, and not into whole bytes of a mask
ALLOWED = (3, 17, VOCAB_SIZE // 2, VOCAB_SIZE - 1)
THOUGHT = ThoughtTokens(open_id=40, close_id=41)
PARAMS = [
    *(
        replace(params, logprobs=3 if index % 2 else None, allowed_token_ids=params.allowed_token_ids and ALLOWED)
        for index, params in enumerate(COMPANY)
    ),
    SamplingParams(temperature=0.0, logprobs=0),
    SamplingParams(temperature=0.0, logprobs=0, logprob_token_ids=(4, VOCAB_SIZE - 4)),
    SamplingParams(temperature=0.9, seed=5, thinking_token_budget=1),
    SamplingParams(temperature=1.5, seed=6, top_p=0.999, logprobs=VOCAB_SIZE),  # a nucleus of nearly everything
]
SEATS = range(len(PARAMS))


def outcome(group: RankGroup | None) -> tuple[list[HostTokens], list[TokenLogprobs]]:
    sampler = Sampler(
        num_seats=len(PARAMS), vocab_size=VOCAB_SIZE, device=CPU, never_sampled=(8, VOCAB_SIZE - 9), group=group
    )
    held = slice(None)
    if group is not None:
        width = VOCAB_SIZE // group.rank.size
        held = slice(group.rank.index * width, (group.rank.index + 1) * width)
    for seat in SEATS:
        sampler.add_request(seat, PARAMS[seat], [1, 2, 3], eos_token_ids=[1], thought=THOUGHT)

    def logits(seats: Sequence[int], position: int) -> Tensor:
        return torch.stack([logits_of(seat, position)[:VOCAB_SIZE] for seat in seats])

    chosen = []
    for position in range(2):
        rows = logits(SEATS, position)
        rows[position, 77] = math.nan
        rows[4 + position, VOCAB_SIZE - 2] = math.inf
        bits = torch.from_numpy(pack_token_ids(ALLOWED, VOCAB_SIZE)).unsqueeze(0)
        sampled = sampler.sample(rows[:, held].clone(), SEATS, grammar=GrammarMask(bits, [7]))
        sampler.accept(SEATS, sampled.token_ids)
        chosen.append(sampled.to_host())
    # Two drafts for every second seat, one of them wrong more often than not.
    num_drafts = np.array([2 * (seat % 2) for seat in SEATS])
    drafts = np.arange(int(num_drafts.sum()), dtype=np.int64) % VOCAB_SIZE
    rows = logits(np.repeat(SEATS, 1 + num_drafts).tolist(), 5)
    chosen.append(sampler.sample_runs(rows[:, held].clone(), SEATS, num_drafts, drafts).tokens.to_host())
    prompt = sampler.prompt_logprobs(logits(range(5), 6)[:, held].clone(), torch.tensor([0, 9, 50, 77, 5]), 4)
    return chosen, prompt.to_list()


@pytest.mark.parametrize("size", [2, 4])
def test_shared_and_whole_choose_alike(size: int) -> None:
    expected, expected_prompt = outcome(None)
    assert any(fault for step in expected for fault in step.faults)
    for found, found_prompt in on_ranks(size, outcome):
        for step, expected_step in zip(found, expected, strict=True):
            assert step.token_ids == expected_step.token_ids
            assert step.faults == expected_step.faults
            check(step.logprobs, expected_step.logprobs)
        check(found_prompt, expected_prompt)


def check(found: Sequence[TokenLogprobs | None], expected: Sequence[TokenLogprobs | None]) -> None:
    assert [entry is None for entry in found] == [entry is None for entry in expected]
    for entry, other in zip(found, expected, strict=True):
        if entry is not None and other is not None:
            assert entry.token_ids == other.token_ids
            assert entry.ranks == other.ranks
            assert entry.logprobs == pytest.approx(other.logprobs, abs=1e-4)
