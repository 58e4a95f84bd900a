"""Texts that are too long are refused without being encoded as a whole; of those that are cut, only the end is read."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from facet.tokens import Tokenizer, text_length
from facet.tokens.encoding import encode_texts
from facet.tokens.prompt_text import PromptText
from tests.tokens.gemma_like import CORPUS, build_gemma_like

TOKENIZER = Tokenizer(build_gemma_like())
KINDS = ("prose", "one letter", "blanks", "no blanks", "characters of several bytes")


def text_of(kind: str, num_characters: int, seed: int = 0) -> str:
    random_ = random.Random(seed)
    if kind == "prose":
        words = " ".join(CORPUS).split(" ")
        return " ".join(random_.choice(words) for _ in range(num_characters))[:num_characters]
    if kind == "no blanks":
        return "".join(random_.choice("abcdefgh") for _ in range(num_characters))
    return {"one letter": "e", "blanks": " ", "characters of several bytes": "🙂"}[kind] * num_characters


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all texts that were encoded to be counted."""
    lengths: list[int] = []

    def encode(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        lengths.extend(map(len, texts))
        return encode_texts(backend, texts)

    monkeypatch.setattr(text_length, "encode_texts", encode)
    return lengths


@given(st.sampled_from(KINDS), st.integers(1, 40_000), st.integers(1, 3_000), st.integers(0, 9))
def test_what_surely_exceeds_does(kind: str, num_characters: int, num_tokens: int, seed: int) -> None:
    text = text_of(kind, num_characters, seed)
    num_had = len(TOKENIZER.encode(text))
    assert num_had > num_tokens or not TOKENIZER.surely_exceeds(text, num_tokens)
    if num_had > 2 * num_tokens and num_characters > 8 * num_tokens and num_tokens > 1_000:
        assert TOKENIZER.surely_exceeds(text, num_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_work_does_not_grow_with_the_text(kind: str, encoded: list[int]) -> None:
    assert TOKENIZER.surely_exceeds(text_of(kind, 1_000_000), 4_096)
    assert sum(encoded) < 200_000
    encoded.clear()
    assert not TOKENIZER.surely_exceeds(text_of(kind, 32_768), 4_096)
    assert encoded == []  # as few characters are encoded anyway


def backend_that(**changes: Any) -> tokenizers.Tokenizer:
    description = json.loads(build_gemma_like().to_str())
    for name, value in changes.items():
        description[name] = {**description[name], **value} if name == "model" else value
    return tokenizers.Tokenizer.from_str(json.dumps(description))


# Each with a character that it takes any number of for few tokens.
LOSING = {
    "normalizer": (backend_that(normalizer={"type": "Strip", "strip_left": True, "strip_right": True}), " "),
    "pre-tokenizer": (backend_that(pre_tokenizer={"type": "WhitespaceSplit"}), "\n"),
    "splitting pre-tokenizer": (
        backend_that(
            pre_tokenizer={"type": "Split", "pattern": {"String": "e"}, "behavior": "Removed", "invert": False}
        ),
        "e",
    ),
    "unknown characters": (backend_that(model={"byte_fallback": False, "unk_token": None}), "👀"),
    "added token": (
        backend_that(
            added_tokens=[
                {"id": 2, "content": "<bos>", "special": True, "lstrip": False, "rstrip": True}
                | {"single_word": False, "normalized": False}
            ]
        ),
        " ",
    ),
}


@pytest.mark.parametrize(("backend", "character"), LOSING.values(), ids=LOSING)
def test_tokenizers_that_lose_characters_have_no_longest_text(backend: tokenizers.Tokenizer, character: str) -> None:
    tokenizer = Tokenizer(backend)
    text = "<bos>" + 100_000 * character
    assert len(tokenizer.encode(text)) < 10
    assert tokenizer.max_characters(10) is None
    assert not tokenizer.surely_exceeds(text, 10)


def test_the_longest_text_of_some_tokens() -> None:
    longest = max(TOKENIZER._backend.get_vocab(), key=len)
    assert TOKENIZER.max_characters(10) == 10 * len(longest)


@pytest.mark.parametrize("kind", ["prose", "no blanks"])
@pytest.mark.parametrize("from_outside", [False, True])
def test_the_end_of_a_long_text_is_that_of_all_of_it(kind: str, from_outside: bool) -> None:
    text = text_of(kind, 60_000) + "<turn|> the end"
    prompt = PromptText.from_outside(text) if from_outside else PromptText(text)
    whole = TOKENIZER.encode_prompt(prompt)
    for num_tokens in (1, 5, 700):
        assert TOKENIZER.encode_prompt(prompt, max_tokens=num_tokens) == whole[-num_tokens:]
    assert TOKENIZER.encode_prompt(prompt, max_tokens=len(whole)) == whole
    assert TOKENIZER.encode_prompt(prompt, max_tokens=0) == []
