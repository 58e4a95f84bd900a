"""Guesses from a request's own tokens: what is found, how far it is followed, and what it costs."""

import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.drafts.guess import TextIndex
from facet.drafts.ngrams import NgramIndex
from facet.drafts.suffixes import SuffixIndex


def filled(index: TextIndex, token_ids: Sequence[int]) -> TextIndex:
    index.extend(token_ids[:5])
    for token_id in token_ids[5:]:
        index.extend([token_id])
    return index


def suffixes(max_match: int = 24, max_factor: float = 1.0, min_share: float = 0.1) -> SuffixIndex:
    return SuffixIndex(max_match=max_match, max_factor=max_factor, min_share=min_share)


@pytest.mark.parametrize(
    ("token_ids", "match_length", "guess"),
    [
        ([], 0, []),
        ([1, 2, 3], 0, []),
        ([1, 2, 3, 4, 5, 1, 2, 3], 3, [4, 5, 1]),  # as many as match
        ([7, 9, 1, 2, 8, 1, 2], 2, [8, 1]),
        ([4, 8, 5, 4], 1, [8]),
        ([1, 2, 3, 9, 9, 5, 2, 3, 8, 8, 1, 2, 3], 3, [9, 9, 5]),  # the longer match, though it is older
        ([6, 6, 6, 6], 3, [6, 6, 6]),  # into the guess itself
        ([1, 2, 1, 2, 1, 2, 1, 2], 6, [1, 2, 1, 2, 1, 2]),
    ],
)
def test_the_longest_match_is_followed(token_ids: list[int], match_length: int, guess: list[int]) -> None:
    found = filled(suffixes(), token_ids).guess(8)
    assert (found.match_length, found.token_ids) == (match_length, guess)
    assert found.shares == [1.0] * len(guess)


def test_the_guess_is_what_most_places_go_on_with() -> None:
    token_ids = [1, 2, 3, 5, 6, 0, 1, 2, 3, 5, 7, 0, 1, 2, 3, 4, 4, 0, 1, 2, 3]
    found = filled(suffixes(max_match=3), token_ids).guess(8)
    assert found.token_ids[:2] == [5, 7], "two of three, then the later of two"
    assert found.shares[:2] == [2 / 3, 1 / 3]
    few = filled(suffixes(max_match=3, min_share=0.5), token_ids).guess(8)
    assert few.token_ids == [5]


def longest_match(token_ids: Sequence[int], most: int) -> int:
    """By trying every place."""
    longest = 0
    for place in range(1, len(token_ids)):
        length = 0
        while length < min(place, most) and token_ids[place - 1 - length] == token_ids[len(token_ids) - 1 - length]:
            length += 1
        longest = max(longest, length)
    return longest


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 12))
def test_no_longer_match_is_missed(token_ids: list[int], most: int) -> None:
    found = filled(suffixes(max_match=most), token_ids).guess(100)
    longest = longest_match(token_ids, most)
    # Of places that share one token or two, only the latest are looked at.
    assert found.match_length == longest or found.match_length < longest <= 2
    assert len(found.token_ids) <= longest


@pytest.mark.parametrize(
    ("token_ids", "guess"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5]),
        ([1, 2, 3, 4, 1, 2, 8, 1, 2], [3, 4, 1]),  # the first occurrence
        ([1, 2, 7, 3, 1, 2, 8, 3, 1, 2], [8, 3, 1]),  # of the longer run
        ([1, 2, 3, 2], []),
        ([5, 5, 5], [5]),
    ],
)
def test_ngrams(token_ids: list[int], guess: list[int]) -> None:
    assert filled(NgramIndex(min_match=2, max_match=3), token_ids).guess(3).token_ids == guess


def test_a_token_costs_microseconds() -> None:
    """Beside a step, which takes milliseconds: 8192 tokens of a text that repeats itself now and then."""
    choose = random.Random(0)
    words = [[choose.randrange(1000) for _ in range(choose.randrange(1, 9))] for _ in range(300)]
    token_ids = [token_id for _ in range(2000) for token_id in choose.choice(words)][:8192]
    index = suffixes()
    start = time.process_time()
    for token_id in token_ids:
        index.extend([token_id])
        index.guess(24)
    assert (time.process_time() - start) / len(token_ids) < 300e-6
