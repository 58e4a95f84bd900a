"""Chooses the parser that turns the tokens of a reply into content, thoughts and tool calls.

`make_reply_parser` decides by the model's vocabulary. Gemma 4 and FunctionGemma have formats with control tokens
(gemma_reply.py). Gemma 3 and 3n have none: they write calls as JSON (json_reply.py), and all else is content.
"""

import secrets
from collections.abc import Callable, Collection

from facet.chat.deltas import ContentDelta, Delta, ReplyParser
from facet.chat.formats import ReplyMarkers
from facet.chat.gemma_reply import GemmaReplyParser
from facet.chat.json_reply import JsonReplyParser
from facet.sampling_params import SamplingParams
from facet.tokens import Tokenizer
from facet.tokens.output_text import OutputText


def random_call_id() -> str:
    """An id no other call has."""
    return f"call_{secrets.token_hex(12)}"


def make_reply_parser(
    tokenizer: Tokenizer,
    sampling: SamplingParams,
    *,
    tools_enabled: bool,
    tool_names: Collection[str] = (),
    calls_come_first: bool = False,
    starts_in_thought: bool = False,
    new_call_id: Callable[[], str] = random_call_id,
) -> ReplyParser:
    """A parser for one reply.

    `tools_enabled` says whether calls are separated; if not, their text is content. Where calls have no tokens, those
    of `tool_names` are, and with `calls_come_first` only at the beginning. `starts_in_thought` is for a prompt that
    ends inside a thought (`formats.find_thought`).
    """
    markers = ReplyMarkers.find(tokenizer)
    if markers is None and tools_enabled and tool_names:
        return JsonReplyParser(
            tokenizer, sampling, tool_names=tool_names, calls_come_first=calls_come_first, new_call_id=new_call_id
        )
    if markers is None:
        return PlainReplyParser(tokenizer, sampling)
    return GemmaReplyParser(
        tokenizer,
        sampling,
        markers,
        tools_enabled=tools_enabled,
        starts_in_thought=starts_in_thought,
        new_call_id=new_call_id,
    )


class PlainReplyParser:
    """A parser of replies in which everything is content."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams) -> None:
        self._output = OutputText(tokenizer, sampling)

    @property
    def stop_string(self) -> str | None:
        return self._output.stop_string

    def push(self, token_id: int) -> list[Delta]:
        return self._as_deltas(self._output.push(token_id)) if self.stop_string is None else []

    def finish(self, *, is_complete: bool = False) -> list[Delta]:
        return self._as_deltas(self._output.finish()) if self.stop_string is None else []

    def _as_deltas(self, text: str) -> list[Delta]:
        return [ContentDelta(text)] if text else []
