"""Adds up the events of a streamed chat answer to a reply, and passes on each part.

The counterpart of the server's streaming. Knows no connection and prints nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from facet.chat.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart
from facet.chat.reply import Reply, ReplyBuilder, ToolCall


class ChatAnswer:
    """An answer as far as it has arrived."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None  # None: it was stopped
        self._builder = ReplyBuilder()

    @property
    def reply(self) -> Reply:
        return self._builder.reply()

    @property
    def calls_to_make(self) -> Sequence[ToolCall]:
        """The calls to make, without one that was cut off."""
        return self.reply.tool_calls if self.finish_reason in ("tool_calls", "stop") else ()

    def message(self) -> dict[str, Any]:
        """The answer as a message for the conversation's history."""
        reply = self.reply if self.calls_to_make else replace(self.reply, tool_calls=())
        return reply.as_message()

    def read(self, events: Iterable[Mapping[str, Any]]) -> Iterator[Delta]:
        """Adds each event and yields what it added."""
        for event in events:
            for choice in event.get("choices") or ():
                for delta in _deltas(choice.get("delta") or {}, self._builder.num_calls):
                    self._builder.add(delta)
                    yield delta
                self.finish_reason = choice.get("finish_reason") or self.finish_reason


def _deltas(fields: Mapping[str, Any], num_calls: int) -> Iterator[Delta]:
    # Servers send thoughts under either name, ours under both.
    if text := fields.get("reasoning_content") or fields.get("reasoning"):
        yield ReasoningDelta(text)
    if text := fields.get("content"):
        yield ContentDelta(text)
    for call in fields.get("tool_calls") or ():
        index, function = call.get("index", 0), call.get("function") or {}
        if index >= num_calls:
            index, num_calls = num_calls, num_calls + 1
            yield ToolCallStart(index, call.get("id") or f"call_{index}", function.get("name") or "")
        if fragment := function.get("arguments"):
            yield ToolCallArguments(index, fragment)
