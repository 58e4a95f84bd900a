"""Looks up the control tokens of a model's replies in its tokenizer, by their text.

Gemma 4 has tokens for calls and for thoughts, FunctionGemma for calls alone; gemma_reply.py explains what they mean.
Gemma 3 and 3n have neither: what they write is plain text (json_reply.py).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Self

from facet.thoughts import ThoughtTokens
from facet.tokens import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerTexts:
    """How one family of models writes its markers. The parts of a call are the same in all of them."""

    call: tuple[str, str]  # what opens it, and what closes it
    string_delimiter: str
    response: tuple[str, str]
    turn: tuple[str, str]
    channel: tuple[str, str] | None  # None: these models mark no thoughts


GEMMA4: Final = MarkerTexts(
    call=("<|tool_call>", "<tool_call|>"),
    string_delimiter='<|"|>',
    response=("<|tool_response>", "<tool_response|>"),
    turn=("<|turn>", "<turn|>"),
    channel=("<|channel>", "<channel|>"),
)
FUNCTION_GEMMA: Final = MarkerTexts(
    call=("<start_function_call>", "<end_function_call>"),
    string_delimiter="<escape>",
    response=("<start_function_response>", "<end_function_response>"),
    turn=("<start_of_turn>", "<end_of_turn>"),
    channel=None,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyMarkers:
    """Token ids. `None`: this vocabulary has no such token."""

    opens_channel: int | None
    closes_channel: int | None
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
        """The markers of this vocabulary; None if it lacks one that every known format needs."""
        found = (cls._written_as(texts, tokenizer) for texts in (GEMMA4, FUNCTION_GEMMA))
        return next((markers for markers in found if markers is not None), None)

    @classmethod
    def _written_as(cls, texts: MarkerTexts, tokenizer: Tokenizer) -> Self | None:
        opens_call, closes_call = map(tokenizer.token_to_id, texts.call)
        string_delimiter = tokenizer.token_to_id(texts.string_delimiter)
        opens_channel = closes_channel = None
        if texts.channel is not None:
            opens_channel, closes_channel = map(tokenizer.token_to_id, texts.channel)
            if opens_channel is None or closes_channel is None:
                return None
        if opens_call is None or closes_call is None or string_delimiter is None:
            return None
        opens_response, closes_response = map(tokenizer.token_to_id, texts.response)
        turn_ends = (*map(tokenizer.token_to_id, texts.turn), tokenizer.eos_id)
        return cls(
            opens_channel=opens_channel,
            closes_channel=closes_channel,
            opens_call=opens_call,
            closes_call=closes_call,
            string_delimiter=string_delimiter,
            opens_response=opens_response,
            closes_response=closes_response,
            ends_turn=frozenset(token_id for token_id in turn_ends if token_id is not None),
        )


def answer_ends(tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> tuple[int, ...]:
    """The tokens that end an answer: those given, and the one that opens a tool's response.

    A model writes it behind its calls, and what would follow is for the client to say. Not every generation_config.json
    counts it among the ends; without it a model goes on with a response of its own invention.
    """
    markers = ReplyMarkers.find(tokenizer)
    opens_response = None if markers is None else markers.opens_response
    if opens_response is None or opens_response in eos_token_ids or not eos_token_ids:
        return tuple(eos_token_ids)
    return *eos_token_ids, opens_response


def find_thought(
    tokenizer: Tokenizer, prompt_token_ids: Sequence[int], eos_token_ids: Collection[int] = ()
) -> ThoughtTokens | None:
    """How the thoughts of an answer to this prompt are marked. None: this model has none."""
    markers = ReplyMarkers.find(tokenizer)
    if markers is None or markers.opens_channel is None or markers.closes_channel is None:
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
