"""Generates random prompts of an exact length: token ids, or text if there is a tokenizer."""

import re
from typing import TYPE_CHECKING

import numpy as np

from facet.bench.dialogue import TokenIds
from facet.errors import ConfigError

if TYPE_CHECKING:  # token ids need no tokenizer, nor the library beneath it
    from facet.tokens import Tokenizer

DEFAULT_VOCAB_SIZE = 32_000  # every model in use has this many tokens
# Special tokens stand at the beginning of most vocabularies; drawing one could end a prompt or mean an image.
_NUM_RESERVED = 1_000
_WORD = re.compile(r" [A-Za-z]{2,12}")
_NUM_WORDS = 4_000
_MOST_TRIES = 20
# For chats without a tokenizer: common words, most of which are one token in any vocabulary.
_COMMON_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information"
)


class RandomTokens:
    """Draws meaningless token ids, avoiding those that are likely to be special."""

    def __init__(self, seed: int, vocab_size: int | None, tokenizer: "Tokenizer | None" = None) -> None:
        self.random = np.random.default_rng(seed)
        self._special: frozenset[int] = tokenizer.special_ids if tokenizer is not None else frozenset()
        known = tokenizer.vocab_size if tokenizer is not None else DEFAULT_VOCAB_SIZE
        self._end = vocab_size if vocab_size is not None else known
        self._start = min(_NUM_RESERVED, self._end // 2)
        if self._end < 2:
            raise ConfigError(f"A vocabulary of {self._end} tokens leaves nothing to choose from; see --vocab-size.")

    def ids(self, num_tokens: int) -> TokenIds:
        ids = self.random.integers(self._start, self._end, size=num_tokens, dtype=np.int32)
        for position in np.flatnonzero(np.isin(ids, list(self._special))) if self._special else ():
            while int(ids[position]) in self._special:
                ids[position] = self.random.integers(self._start, self._end)
        return ids


class RandomText:
    """Writes text that a tokenizer cuts into an exact number of tokens."""

    def __init__(self, tokens: RandomTokens, tokenizer: "Tokenizer") -> None:
        self._random = tokens.random
        self._tokenizer = tokenizer
        self._words = self._find_words(tokens)

    def write(self, num_tokens: int, *, begins: bool) -> str:
        """`begins`: the text begins the prompt, so special tokens that the tokenizer adds are counted."""
        words = list(self._draw(num_tokens))
        for _ in range(_MOST_TRIES):
            text = "".join(words)
            excess = len(self._tokenizer.encode(text, add_special_tokens=begins)) - num_tokens
            if excess == 0:
                return text
            # Neighbours that join into one token, or a word cut in two at the start, cost a few tries at most.
            words = words[:-excess] if excess > 0 else [*words, *self._draw(-excess)]
        raise ConfigError(
            f"No text of exactly {num_tokens} tokens was found for this tokenizer. Leave --tokenizer out to send token "
            "ids."
        )

    def _draw(self, count: int) -> list[str]:
        return [self._words[index] for index in self._random.integers(0, len(self._words), size=count)]

    def _find_words(self, tokens: RandomTokens) -> list[str]:
        """Whole words with the space before them: tokens that keep to themselves, whatever their neighbours."""
        found: dict[str, None] = {}
        for token_id in tokens.ids(_NUM_WORDS * 4).tolist():
            word = self._tokenizer.decode_continuation([token_id])
            if _WORD.fullmatch(word) and len(self._tokenizer.encode(word, add_special_tokens=False)) == 1:
                found[word] = None
            if len(found) == _NUM_WORDS:
                break
        if not found:
            raise ConfigError(
                "This tokenizer has no words to write text with. Leave --tokenizer out to send token ids."
            )
        return list(found)


def common_words(random: np.random.Generator, count: int) -> str:
    """Text of approximately this many tokens, without a tokenizer."""
    words = _COMMON_WORDS.split()
    return " ".join(words[index] for index in random.integers(0, len(words), size=count))
