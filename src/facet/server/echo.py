"""Describes the prompt of a completion as it is repeated before the answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from facet.tokens import Tokenizer
from facet.tokens.text_offsets import TextOffsets


@dataclass(frozen=True, slots=True)
class Echo:
    text: str = ""
    offsets: Sequence[int] = ()  # where each token of the prompt begins in the text; empty where nobody asks


NO_ECHO = Echo()


def echo_of_text(
    text: str, token_ids: Sequence[int], tokenizer: Tokenizer, *, has_added_tokens: bool, with_offsets: bool
) -> Echo:
    """A prompt that was given as text is repeated as it was written: with its markers, and without added tokens."""
    if not with_offsets:
        return Echo(text)
    num_added = len(tokenizer.added_before) if has_added_tokens else 0
    places = TextOffsets(tokenizer, skip_special_tokens=False)
    offsets = [0] * num_added + [min(places.push(token_id), len(text)) for token_id in token_ids[num_added:]]
    return Echo(text, offsets)


def echo_of_tokens(token_ids: Sequence[int], tokenizer: Tokenizer, *, with_offsets: bool) -> Echo:
    """The echo of token ids: they are repeated as their text, in which special tokens do not show."""
    places = TextOffsets(tokenizer)
    return Echo(tokenizer.decode(token_ids), [places.push(token_id) for token_id in token_ids] if with_offsets else ())
