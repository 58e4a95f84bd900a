"""Encodes words that must not appear as the token sequences that spell them."""

from collections.abc import Iterable

from facet.tokens.tokenizer import Tokenizer


def bad_words_token_ids(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as written, and as spelled after a space: most vocabularies have different tokens for the two."""
    spellings: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, " " + word.lstrip()):
            token_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            if token_ids:
                spellings[token_ids] = None
    return tuple(spellings)
