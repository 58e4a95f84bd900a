"""temperature, min_p, top_k and top_p keep the tokens they should."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from facet.sampling.candidates import top_candidates
from facet.sampling.truncation import Truncation, is_covered, relative_weights, total_mass, truncate
from facet.sampling_params import SamplingParams
from tests.sampling.builders import quantized_logits
from tests.sampling.reference import surviving_tokens


def truncation_of(params: SamplingParams, vocab_size: int) -> Truncation:
    return Truncation(
        temperature=torch.tensor([[params.temperature]]),
        top_k=torch.tensor([[params.top_k or vocab_size]]),
        top_p=torch.tensor([[params.top_p]], dtype=torch.float64),
        min_p=torch.tensor([[params.min_p]]),
        uses_top_k=0 < params.top_k < vocab_size,
        uses_top_p=params.top_p < 1,
        uses_min_p=params.min_p > 0,
    )


def kept_tokens(logits: list[float], params: SamplingParams, k: int | None = None) -> set[int]:
    row = torch.tensor([logits])
    truncation = truncation_of(params, row.shape[1])
    candidates = top_candidates(row, k or row.shape[1])
    weights = relative_weights(candidates.logits, candidates.logits[:, :1], truncation)
    kept = truncate(weights, truncation)[0] > 0
    return set(candidates.token_ids[0][kept].tolist())


@given(
    logits=quantized_logits(12),
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    top_k=st.integers(0, 13),
    top_p=st.floats(1e-9, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_each_keeps_what_the_reference_keeps(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = surviving_tokens(np.array(logits), params)
    kept = kept_tokens(logits, params)
    assert expected.certain <= kept <= expected.possible


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.39}, {0}),
        ({"top_p": 0.41}, {0, 1}),
        ({"top_p": 0.71}, {0, 1, 2}),
        ({"min_p": 0.74}, {0, 1}),
        ({"min_p": 0.26, "top_p": 0.999}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        # top_p is a share of what top_k leaves: 0.4 of (0.4 + 0.3) is 0.57.
        ({"top_k": 2, "top_p": 0.56}, {0}),
        ({"top_k": 2, "top_p": 0.58}, {0, 1}),
        ({"top_p": 1e-12}, {0}),
    ],
)
def test_known_cases(settings: dict[str, float], kept: set[int]) -> None:
    logits = [math.log(share) for share in (0.4, 0.3, 0.2, 0.1)]
    assert kept_tokens(logits, SamplingParams(**settings)) == kept  # type: ignore[arg-type]


def test_a_boundary_between_equals_is_exact() -> None:
    """Ten equal tokens: a share of 0.3 is three of them, not four by a rounding error."""
    assert kept_tokens([0.0] * 10, SamplingParams(top_p=0.3)) == {0, 1, 2}


@given(quantized_logits(40), st.floats(0.01, 1.0), st.sampled_from([0.0, 0.02]), st.integers(1, 40))
def test_covered_means_that_candidates_decide_like_the_vocabulary(
    logits: list[float], top_p: float, min_p: float, k: int
) -> None:
    params = SamplingParams(top_p=top_p, min_p=min_p)
    truncation = truncation_of(params, 40)
    row = torch.tensor([logits])
    best, everything = top_candidates(row, k), top_candidates(row, 40)
    mass = total_mass(relative_weights(row, row.amax(-1, keepdim=True), truncation))
    few = relative_weights(best.logits, best.logits[:, :1], truncation)
    covered = bool(is_covered(few, truncation, mass))
    all_weights = truncate(relative_weights(everything.logits, everything.logits[:, :1], truncation), truncation)
    num_kept = int((all_weights > 0).sum())
    assert covered == (num_kept <= k)
    if covered:
        assert torch.equal(truncate(few, truncation, mass), all_weights[:, :k])


def test_top_p_is_a_share_of_the_vocabulary_not_of_the_candidates() -> None:
    """The best three hold 0.95; the third begins at 0.8, below a share of 0.82 but above 0.82 * 0.95."""
    logits = torch.tensor([[math.log(share) for share in (0.5, 0.3, 0.15, 0.05)]])
    truncation = truncation_of(SamplingParams(top_p=0.82), 4)
    best = top_candidates(logits, 3)
    weights = relative_weights(best.logits, best.logits[:, :1], truncation)
    mass = total_mass(relative_weights(logits, logits[:, :1], truncation))
    assert is_covered(weights, truncation, mass).tolist() == [True]
    assert (truncate(weights, truncation, mass) > 0).tolist() == [[True, True, True]]


def test_tiny_temperatures_and_huge_logits_stay_finite() -> None:
    truncation = truncation_of(SamplingParams(temperature=1e-5), 3)
    logits = torch.tensor([[1e30, 0.0, -1e30]])
    weights = relative_weights(logits, logits[:, :1], truncation)
    assert weights.tolist() == [[1.0, 0.0, 0.0]]
