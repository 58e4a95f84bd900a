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

    def surely_exceeds(self, text: str, num_tokens: int) -> bool:
        """False: it may fit, and takes no more than a bounded time to encode."""
        if len(text) <= CHARACTERS_PER_TOKEN * num_tokens:
            return False
        if self._normalizer_keeps_length and len(text) > self._longest_token * num_tokens:
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
        """In characters; no text has fewer tokens than its length divided by it."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    @cached_property
    def _normalizer_keeps_length(self) -> bool:
        """Whether every character is still one when it is looked up, as where blanks become other characters."""
        if self._backend.normalizer is None:
            return True
        normalizer = json.loads(self._backend.normalizer.__getstate__())
        pattern = normalizer.get("pattern", {}).get("String")
        return normalizer["type"] == "Replace" and pattern is not None and len(pattern) == len(normalizer["content"])


def _parts(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = start + PART_CHARACTERS
        if end < len(text):
            near = text[end - _SEARCHED_CHARACTERS : end]
            end -= len(near) - len(near.rstrip().rpartition(" ")[0]) if " " in near.rstrip() else 0
        yield text[start:end]
        start = end
