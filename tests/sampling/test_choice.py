"""Greedy and random choice: the token the reference chooses, with the probabilities asked for."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from facet.sampling.choice import NARROW_LIMIT
from facet.sampling_params import SamplingParams
from tests.sampling.builders import chi_square, chi_square_limit, make_sampler, quantized_logits, sample_once
from tests.sampling.reference import possible_choices, processed_logits, rounding_errors

# One for each way a row can be decided.
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "narrow": {"top_k": 5, "top_p": 0.9},
    "wide": {"top_k": NARROW_LIMIT + 100},
    "nucleus": {"top_p": 0.7},
    "open": {},
    "open with min_p": {"min_p": 0.2},
}


@given(
    logits=st.lists(quantized_logits(30), min_size=1, max_size=4),
    temperature=st.sampled_from([0.0, 1e-5, 0.4, 1.0, 2.0]),
    top_k=st.integers(0, 31),
    top_p=st.sampled_from([1.0, 0.95, 0.5]),
    min_p=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**63 - 1),
)
def test_the_choice_is_the_reference_choice(
    logits: list[list[float]], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    chosen = sample_once(logits, params).token_ids
    for token_id, row in zip(chosen, logits, strict=True):
        assert token_id in possible_choices(np.array(row), params, position=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])  # 0.01: nearly flat, so that every nucleus is large
def test_every_kind_of_row_is_right_in_a_large_vocabulary(kind: str, spread: float) -> None:
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(3)) * spread
    for seed in range(3):
        params = SamplingParams(**KINDS[kind], seed=seed)
        chosen = sample_once(logits, params).token_ids
        for token_id, row in zip(chosen, logits.double().numpy(), strict=True):
            assert token_id in possible_choices(row, params, position=0)


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"top_p": 0.05}, {"top_k": 1}])
@pytest.mark.parametrize("lower", [-3.5, -2.0, 0.25, 4.25])
def test_where_rounding_ranks_two_tokens_either_is_right(settings: dict[str, Any], lower: float) -> None:
    """Token 5 was sampled once and token 3 six times, which 2.0 more in its logit makes up for, but for rounding."""
    params = SamplingParams(**settings, frequency_penalty=0.4, presence_penalty=0.7, seed=1)
    logits, output = [lower - 9.0] * 8, [5, *[3] * 6]
    logits[5], logits[3] = lower, lower + 2.0
    logits[1] = logits[6] = lower - 1.1 - 1e-4  # close, but not a matter of rounding
    row, errors = processed_logits(logits, params, [], output), rounding_errors(logits, params, [], output)
    assert possible_choices(row, params, position=7, errors=errors) == {3, 5}
    sampler = make_sampler(len(logits))
    sampler.add_request(0, params, [], output)
    assert sampler.sample(torch.tensor([logits]), [0]).to_host().token_ids[0] in {3, 5}


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"top_p": 0.05}, {"top_k": 1}])
def test_of_equal_logits_the_first_is_right_whatever_is_penalized(settings: dict[str, Any]) -> None:
    params = SamplingParams(**settings, frequency_penalty=0.4, seed=1)
    logits, output = [0.0, 0.0, 2.0, 1.0, 2.0], [0, 3]
    row, errors = processed_logits(logits, params, [], output), rounding_errors(logits, params, [], output)
    assert possible_choices(row, params, position=2, errors=errors) == {2}
    sampler = make_sampler(len(logits))
    sampler.add_request(0, params, [], output)
    assert sampler.sample(torch.tensor([logits]), [0]).to_host().token_ids[0] == 2


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "greedy"])
def test_frequencies_follow_the_probabilities(kind: str) -> None:
    """One seed, many positions: what one long answer draws."""
    shares = np.array([0.35, 0.2, 0.15, 0.1, 0.1, 0.06, 0.04])
    kept = {"narrow": 5, "nucleus": 3, "open with min_p": 5}.get(kind, len(shares))
    vocab_size = NARROW_LIMIT + 200 if kind == "wide" else len(shares)
    num_rows, num_steps = 500, 12
    logits = torch.full((num_rows, vocab_size), -math.inf)
    logits[:, : len(shares)] = torch.from_numpy(np.log(shares)).float()
    sampler = make_sampler(vocab_size, num_rows)
    rows = range(num_rows)
    for row in rows:
        sampler.add_request(row, SamplingParams(**KINDS[kind], seed=row), [])
    counts = np.zeros(vocab_size)
    for _ in range(num_steps):
        sampled = sampler.sample(logits, rows)
        sampler.accept(rows, sampled.token_ids)
        counts += np.bincount(sampled.token_ids.numpy(), minlength=vocab_size)
    assert counts[kept:].sum() == 0
    expected = shares[:kept] / shares[:kept].sum() * num_rows * num_steps
    assert chi_square(counts[:kept], expected) < chi_square_limit(kept - 1)


def test_temperature_changes_the_odds() -> None:
    num_rows, temperature = 6000, 2.0
    logits = torch.tensor([[0.0, math.log(4.0)]]).repeat(num_rows, 1)
    params = [SamplingParams(temperature=temperature, seed=row) for row in range(num_rows)]
    ones = sum(token_id or 0 for token_id in sample_once(logits, params).token_ids)
    # 4 to 1 becomes 2 to 1.
    assert chi_square([num_rows - ones, ones], [num_rows / 3, num_rows * 2 / 3]) < chi_square_limit(1)


def test_a_tiny_temperature_is_greedy_without_overflow() -> None:
    logits = torch.randn(4, 3000) * 30
    for settings in KINDS.values():
        params = SamplingParams(**{**settings, "temperature": 1e-5}, seed=1)
        assert list(sample_once(logits, params).token_ids) == logits.argmax(-1).tolist()


def test_top_k_beyond_the_vocabulary_is_off() -> None:
    logits = torch.randn(4, 50)
    beyond = sample_once(logits, SamplingParams(top_k=10**9, seed=5))
    assert beyond == sample_once(logits, SamplingParams(top_k=0, seed=5))
    assert beyond == sample_once(logits, SamplingParams(top_k=50, seed=5))


def test_requests_without_a_seed_differ() -> None:
    outcomes = sample_once(torch.zeros(40, 1000), SamplingParams()).token_ids
    assert len(set(outcomes)) > 30
