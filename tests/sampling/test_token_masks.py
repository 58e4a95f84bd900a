"""Masks and biases of single tokens: allowed_token_ids, bad_words, min_tokens, logit_bias, grammars."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from facet.sampling import GrammarMask
from facet.sampling.allowed_tokens import AllowedTokens
from facet.sampling.bad_words import BadWords
from facet.sampling.batch_seats import Arrival, BatchSeats
from facet.sampling.bitmask import num_words, pack_token_ids
from facet.sampling.logit_bias import LogitBias
from facet.sampling.min_tokens import MinTokens
from facet.sampling.sampler import _LogitsFeature as LogitsFeature
from facet.sampling.vocabulary import Vocabulary
from facet.sampling_params import SamplingParams
from tests.sampling.builders import CPU
from tests.sampling.reference import processed_logits

VOCAB_SIZE = 70  # not a multiple of 32
TOKENS = st.integers(0, VOCAB_SIZE - 1)
EOS = (1, 5)


def arrive(feature: LogitsFeature, seat: int, params: SamplingParams, prompt: list[int], output: list[int]) -> None:
    feature.add_request(
        Arrival(seat=seat, params=params, prompt_token_ids=prompt, output_token_ids=output, eos_token_ids=EOS)
    )


def check_against_reference(
    feature: LogitsFeature, params: SamplingParams, prompt: list[int], output: list[int], steps: list[int]
) -> None:
    """The feature's request sits between two that do not use it; all three go through the same steps."""
    for seat, seat_params in ((3, SamplingParams()), (0, params), (2, SamplingParams())):
        arrive(feature, seat, seat_params, prompt, output)
    batch = BatchSeats((3, 0, 2), CPU)
    logits = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    for token_id in [*steps, None]:
        changed = logits.clone()
        if feature.is_active(batch):
            feature.apply(changed, batch)
        expected = processed_logits(logits[1].tolist(), params, prompt, output, EOS)
        torch.testing.assert_close(changed[1].double(), torch.from_numpy(expected), rtol=1e-6, atol=1e-6)
        assert torch.equal(changed[[0, 2]], logits[[0, 2]])
        if token_id is not None:
            feature.accept(batch, torch.tensor([9, token_id, 9]))
            output = [*output, token_id]


@given(
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=6),
    prompt=st.lists(st.integers(0, 2), max_size=4),
    output=st.lists(st.integers(0, 2), max_size=5),
    steps=st.lists(st.integers(0, 2), max_size=6),
)
def test_bad_words(words: list[list[int]], prompt: list[int], output: list[int], steps: list[int]) -> None:
    check_against_reference(BadWords(4, CPU), SamplingParams(bad_words_token_ids=words), prompt, output, steps)


def test_longer_words_arriving_later_do_not_disturb_earlier_requests() -> None:
    bad_words = BadWords(3, CPU)
    arrive(bad_words, 0, SamplingParams(bad_words_token_ids=[[1, 2]]), [], [8, 1])
    arrive(bad_words, 1, SamplingParams(bad_words_token_ids=[[4, 5, 6, 7]]), [], [4, 5, 6])
    logits = torch.zeros(2, VOCAB_SIZE)
    bad_words.apply(logits, BatchSeats((1, 0), CPU))
    assert (logits == -math.inf).nonzero().tolist() == [[0, 7], [1, 2]]


def test_bad_words_as_text_are_refused_rather_than_ignored() -> None:
    with pytest.raises(AssertionError, match="bad_words reached the sampler as text"):
        arrive(BadWords(1, CPU), 0, SamplingParams(bad_words=["rude"]), [], [])


@given(st.sets(TOKENS, min_size=1))
def test_allowed_token_ids(allowed: set[int]) -> None:
    params = SamplingParams(allowed_token_ids=sorted(allowed))
    check_against_reference(AllowedTokens(VOCAB_SIZE, CPU), params, [], [], [3, 4])


@given(min_tokens=st.integers(0, 5), stop=st.lists(TOKENS, max_size=3), output=st.lists(TOKENS, max_size=6))
def test_min_tokens(min_tokens: int, stop: list[int], output: list[int]) -> None:
    params = SamplingParams(min_tokens=min_tokens, stop_token_ids=stop, max_tokens=None)
    check_against_reference(MinTokens(), params, [], output, [9, 9, 9])


@given(st.dictionaries(TOKENS, st.floats(-100, 100), max_size=10))
def test_logit_bias(biases: dict[int, float]) -> None:
    check_against_reference(LogitBias(), SamplingParams(logit_bias=biases), [], [], [2])


def test_a_request_that_has_enough_tokens_costs_nothing_more() -> None:
    min_tokens = MinTokens()
    arrive(min_tokens, 0, SamplingParams(min_tokens=2), [], [])
    batch = BatchSeats((0,), CPU)
    for _ in range(2):
        assert min_tokens.is_active(batch)
        min_tokens.accept(batch, torch.tensor([3]))
    assert not min_tokens.is_active(batch)


def test_requests_get_enough_tokens_at_different_times() -> None:
    min_tokens = MinTokens()
    arrive(min_tokens, 0, SamplingParams(min_tokens=3), [], [])
    arrive(min_tokens, 1, SamplingParams(min_tokens=1), [], [])
    batch = BatchSeats((0, 1), CPU)
    for forbidden in ([[0, 1], [0, 5], [1, 1], [1, 5]], [[0, 1], [0, 5]], [[0, 1], [0, 5]]):
        logits = torch.zeros(2, VOCAB_SIZE)
        min_tokens.apply(logits, batch)
        assert (logits == -math.inf).nonzero().tolist() == forbidden
        min_tokens.accept(batch, torch.tensor([3, 3]))
    assert not min_tokens.is_active(batch)


@given(st.sets(TOKENS), st.sets(TOKENS))
def test_a_grammar_forbids_what_its_bits_do_not_allow(first: set[int], second: set[int]) -> None:
    words = np.stack([pack_token_ids(first, VOCAB_SIZE), pack_token_ids(second, VOCAB_SIZE)])
    for token_ids, packed in zip((first, second), words, strict=True):
        assert packed.shape == (num_words(VOCAB_SIZE),)
        as_integer = sum((int(word) & 0xFFFFFFFF) << (32 * index) for index, word in enumerate(packed))
        assert as_integer == sum(1 << token_id for token_id in token_ids)
    logits = torch.randn(3, VOCAB_SIZE)
    changed = logits.clone()
    GrammarMask(torch.from_numpy(words), [2, 0]).apply(changed, Vocabulary(VOCAB_SIZE))
    assert torch.equal(changed[1], logits[1])
    for place, allowed in ((2, first), (0, second)):
        for token in range(VOCAB_SIZE):
            expected = float(logits[place, token]) if token in allowed else -math.inf
            assert float(changed[place, token]) == expected
    every_row = logits[[2, 0]]
    GrammarMask(torch.from_numpy(words), [0, 1]).apply(every_row, Vocabulary(VOCAB_SIZE))
    assert torch.equal(every_row, changed[[2, 0]])


def test_a_bitmask_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"shape \(1, 2\) for 1 rows of 70 tokens"):
        GrammarMask(torch.zeros(1, 2, dtype=torch.int32), [0]).apply(torch.zeros(1, VOCAB_SIZE), Vocabulary(VOCAB_SIZE))
