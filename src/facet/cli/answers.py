"""Adds up the events of a streamed chat answer to a message, and passes on each part.

The counterpart of the server's streaming. Knows no connection and prints nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from facet.chat import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart


@dataclass(slots=True)
class Call:
    """One tool call. `arguments` is the text of a JSON object."""

    call_id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class ChatAnswer:
    """An answer as far as it has arrived."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str | None = None  # None: it was stopped

    def add(self, delta: Delta) -> None:
        if isinstance(delta, ContentDelta):
            self.content += delta.text
        elif isinstance(delta, ReasoningDelta):
            self.reasoning += delta.text
        elif isinstance(delta, ToolCallStart):
            self.calls.append(Call(delta.call_id, delta.name))
        else:
            self.calls[delta.index].arguments += delta.fragment

    @property
    def is_call(self) -> bool:
        """Whether there are complete calls to carry out."""
        return self.finish_reason in ("tool_calls", "stop") and bool(self.calls)

    def message(self) -> dict[str, Any]:
        """For the history of the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.is_call:
            if self.reasoning:  # a model that goes on after a result may look at why it asked
                message["reasoning_content"] = self.reasoning
            message["tool_calls"] = [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return message


def read_answer(events: Iterable[Mapping[str, Any]], answer: ChatAnswer) -> Iterator[Delta]:
    """Adds each event to `answer` and yields what it added."""
    for event in events:
        for choice in event.get("choices") or ():
            for delta in _deltas(choice.get("delta") or {}, len(answer.calls)):
                answer.add(delta)
                yield delta
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


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
