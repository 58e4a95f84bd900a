"""The best tokens, in one order, whatever k and whatever the vocabulary's size."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from facet.sampling.candidates import best_token, top_candidates
from tests.sampling.reference import ranked

# Ranked whole; in even chunks; with a short last chunk; with a last chunk of one.
VOCABULARIES = [1, 7, 100, 4096, 5000, 4097]


@st.composite
def tied_logits(draw: st.DrawFn) -> torch.Tensor:
    vocab_size = draw(st.sampled_from(VOCABULARIES))
    num_values = draw(st.sampled_from([1, 2, 5, 1000]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = torch.randn(num_values, generator=generator) * 3
    logits = values[torch.randint(num_values, (3, vocab_size), generator=generator)]
    if draw(st.booleans()):  # most of the vocabulary masked
        logits[torch.rand(3, vocab_size, generator=generator) < 0.99] = -math.inf
    if draw(st.booleans()):  # the best tokens at the very end
        logits[:, -1] = 50.0
    return logits.to(draw(st.sampled_from([torch.float32, torch.bfloat16])))


@given(tied_logits(), st.sampled_from([1, 2, 5, 64, 1024]))
def test_order_is_by_logit_then_by_id(logits: torch.Tensor, k: int) -> None:
    before = logits.clone()
    found = top_candidates(logits, k)
    for row in range(len(logits)):
        values = logits[row].tolist()
        expected = ranked(values)[:k]
        assert found.token_ids[row].tolist() == expected
        assert found.logits[row].tolist() == [values[token] for token in expected]
        assert float(found.row_max[row]) == values[expected[0]]
    assert torch.equal(logits, before)


@given(tied_logits())
def test_the_best_token_is_the_first_candidate(logits: torch.Tensor) -> None:
    best = best_token(logits)
    assert best.token_ids.tolist() == top_candidates(logits, 1).token_ids[:, 0].tolist()
    assert best.token_ids.tolist() == logits.float().argmax(-1).tolist()
    assert torch.equal(best.row_max, logits.amax(-1))


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("poison", [math.nan, -math.nan, math.inf])
def test_a_row_with_nan_or_infinity_shows_it_in_its_maximum(vocab_size: int, poison: float) -> None:
    for place in {0, vocab_size // 2, vocab_size - 1}:
        logits = torch.randn(2, vocab_size)
        logits[1, place] = poison
        for row_max in (best_token(logits).row_max, top_candidates(logits, 5).row_max):
            assert row_max.isfinite().tolist() == [True, False]


def test_minus_zero_ties_with_zero() -> None:
    assert top_candidates(torch.tensor([[-0.0, 0.0, -0.0, 0.0]]), 4).token_ids.tolist() == [[0, 1, 2, 3]]


def test_rows_may_lie_apart_in_memory() -> None:
    padded = torch.randn(3, 6000)
    view = padded[:, :5000]
    assert torch.equal(top_candidates(view, 9).token_ids, top_candidates(view.contiguous(), 9).token_ids)
    assert torch.equal(best_token(view).token_ids, view.argmax(-1))
