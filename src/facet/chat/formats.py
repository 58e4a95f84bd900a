"""Looks up the control tokens of Gemma 4's replies in a tokenizer, by their text.

Gemma 3 and 3n have none of them: their replies are plain text. gemma_reply.py explains
what the tokens mean.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from facet.thoughts import ThoughtTokens
from facet.tokens import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyMarkers:
    """Token ids. `None`: this vocabulary has no such token."""

    opens_channel: int
    closes_channel: int
    opens_call: int
    closes_call: int
    string_delimiter: int  # opens and closes a string inside a call
    opens_response: int | None
    closes_response: int | None
    ends_turn: frozenset[int]  # whatever is open, a turn's end closes it

    @property
    def structural(self) -> frozenset[int]:
        """Every token that opens or closes a part of a reply. The string delimiter is not one of them."""
        channels = (self.opens_channel, self.closes_channel)
        calls = (self.opens_call, self.closes_call, self.opens_response, self.closes_response)
        return frozenset(token_id for token_id in (*channels, *calls) if token_id is not None) | self.ends_turn

    @classmethod
    def find(cls, tokenizer: Tokenizer) -> Self | None:
        """The markers of this vocabulary; None if it lacks one that Gemma 4's format cannot do without."""
        opens_channel, closes_channel = tokenizer.token_to_id("<|channel>"), tokenizer.token_to_id("<channel|>")
        opens_call, closes_call = tokenizer.token_to_id("<|tool_call>"), tokenizer.token_to_id("<tool_call|>")
        string_delimiter = tokenizer.token_to_id('<|"|>')
        if (
            opens_channel is None
            or closes_channel is None
            or opens_call is None
            or closes_call is None
            or string_delimiter is None
        ):
            return None
        turn_ends = (tokenizer.token_to_id("<turn|>"), tokenizer.token_to_id("<|turn>"), tokenizer.eos_id)
        return cls(
            opens_channel=opens_channel,
            closes_channel=closes_channel,
            opens_call=opens_call,
            closes_call=closes_call,
            string_delimiter=string_delimiter,
            opens_response=tokenizer.token_to_id("<|tool_response>"),
            closes_response=tokenizer.token_to_id("<tool_response|>"),
            ends_turn=frozenset(token_id for token_id in turn_ends if token_id is not None),
        )


def find_thought(
    tokenizer: Tokenizer, prompt_token_ids: Sequence[int], eos_token_ids: Collection[int] = ()
) -> ThoughtTokens | None:
    """How the thoughts of an answer to this prompt are marked. None: this model has none."""
    markers = ReplyMarkers.find(tokenizer)
    if markers is None:
        return None
    return ThoughtTokens(
        open_id=markers.opens_channel,
        close_id=markers.closes_channel,
        turn_end_ids=tuple(sorted(markers.ends_turn.union(eos_token_ids))),
        is_open=_ends_in_thought(markers, prompt_token_ids),
    )


def _ends_in_thought(markers: ReplyMarkers, prompt_token_ids: Sequence[int]) -> bool:
    """Whether a prompt leaves a channel open, so that the reply begins in the middle of a thought."""
    if markers.opens_channel not in prompt_token_ids:  # quicker than the loop, in a long prompt without turns
        return False
    for token_id in reversed(prompt_token_ids):
        if token_id == markers.opens_channel:
            return True
        if token_id == markers.closes_channel or token_id in markers.ends_turn:
            return False
    return False
