"""Encodes texts in one call to the Rust tokenizer."""

from collections.abc import Sequence

import tokenizers

from facet.errors import RequestError


def encode_texts(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, nothing added around it; several texts are spread over the cores."""
    # Always the library's batch call, even for one text: unlike its single call it lets go of Python's
    # interpreter lock while it works, so threads scale, and this form skips offsets, which are not needed.
    try:
        return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]
    except (UnicodeEncodeError, TypeError) as error:
        raise _explain_unencodable(texts) from error


def _explain_unencodable(texts: Sequence[str]) -> RequestError:
    for text in texts:
        for position, character in enumerate(text):
            if "\ud800" <= character <= "\udfff":
                return RequestError(
                    f"The text holds U+{ord(character):04X} at position {position}: half of a surrogate "
                    "pair, not a character. Send valid Unicode."
                )
    return RequestError("The text to encode is not a string of Unicode characters.")
