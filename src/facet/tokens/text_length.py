"""Says that a text has too many tokens without encoding all of it.

Encoding takes about a second and a hundred megabytes for each megabyte of text, which a client must not be able to
spend on a text that cannot fit.
"""

import json
from collections.abc import Iterator
from functools import cached_property

import tokenizers

from facet.tokens.encoding import encode_texts

# Text has three to five characters a token. What has fewer than this for each token allowed is encoded without asking.
CHARACTERS_PER_TOKEN = 8
PART_CHARACTERS = 1 << 15
# Parts end at white space where there is some so near to their end.
_SEARCHED_CHARACTERS = 1 << 10


class TextLength:
    """Immutable; threads may share it."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend

    def max_characters(self, num_tokens: int) -> int | None:
        """The most characters of a text with so few tokens. None: a text may have few, however long it is."""
        return self._longest_token * num_tokens if self._keeps_characters else None

    def surely_exceeds(self, text: str, num_tokens: int) -> bool:
        """Whether a text surely has more tokens. False: it may fit, and takes no more than a bounded time to encode."""
        if len(text) <= CHARACTERS_PER_TOKEN * num_tokens or self._has_stripping_tokens:
            return False
        max_characters = self.max_characters(num_tokens)
        if max_characters is not None and len(text) > max_characters:
            return True
        counted = 0
        for part in _parts(text):
            # A token that a cut divides counts twice, or more often: what is left is no more than the whole text has.
            counted += max(0, len(encode_texts(self._backend, [part])[0]) - self._longest_token)
            if counted > num_tokens:
                return True
        return False

    @cached_property
    def _longest_token(self) -> int:
        """The longest token in characters; no text has fewer tokens than its length divided by it."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    @cached_property
    def _keeps_characters(self) -> bool:
        """Whether every character becomes part of a token that is written with it, or one of its own."""
        backend = self._backend
        is_spelled = isinstance(backend.model, tokenizers.models.BPE) and backend.model.byte_fallback
        is_looked_up = _keeps_length(backend.normalizer) and _only_splits(backend.pre_tokenizer)
        return is_spelled and is_looked_up and not self._has_stripping_tokens

    @cached_property
    def _has_stripping_tokens(self) -> bool:
        """Whether there are tokens that take in all white space beside them. Gemma has none."""
        return any(token.lstrip or token.rstrip for token in self._backend.get_added_tokens_decoder().values())


def _parts(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = start + PART_CHARACTERS
        if end < len(text):
            near = text[end - _SEARCHED_CHARACTERS : end]
            end -= len(near) - len(near.rstrip().rpartition(" ")[0]) if " " in near.rstrip() else 0
        yield text[start:end]
        start = end


def _keeps_length(normalizer: tokenizers.normalizers.Normalizer | None) -> bool:
    """Whether it turns every character into one, as where blanks become other characters."""
    if normalizer is None:
        return True
    state = json.loads(normalizer.__getstate__())
    pattern = state.get("pattern", {}).get("String")
    return state["type"] == "Replace" and pattern is not None and len(pattern) == len(state["content"])


def _only_splits(pre_tokenizer: tokenizers.pre_tokenizers.PreTokenizer | None) -> bool:
    """Whether it leaves every character where it is, as other kinds leave blanks out."""
    if pre_tokenizer is None:
        return True
    state = json.loads(pre_tokenizer.__getstate__())
    return bool(state["type"] == "Split" and state["behavior"] != "Removed")
