"""Builds the whole reply, in OpenAI's shape, from its deltas."""

from dataclasses import dataclass
from typing import Any, Literal

from facet.chat.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallStart
from facet.chat.json_text import is_json


@dataclass(frozen=True, slots=True)
class FunctionCall:
    name: str
    arguments: str  # the text of a JSON object


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    content: str | None  # None: it has thoughts or calls and says nothing else
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    role: Literal["assistant"] = "assistant"

    def as_message(self) -> dict[str, Any]:
        """The reply as a message for the conversation's history."""
        message: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        if self.tool_calls:
            if self.reasoning:  # a model that goes on after a result may look at why it asked
                message["reasoning_content"] = self.reasoning
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": call.type,
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in self.tool_calls
            ]
        return message


class ReplyBuilder:
    """A reply as far as it has arrived."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name, and the fragments of the arguments

    @property
    def num_calls(self) -> int:
        return len(self._calls)

    @property
    def has_whole_call(self) -> bool:
        """Whether there is a call to carry out: one whose arguments are JSON, and not the beginning of it."""
        return any(is_json("".join(parts)) for _, _, parts in self._calls)

    def add(self, delta: Delta) -> None:
        if isinstance(delta, ContentDelta):
            self._content.append(delta.text)
        elif isinstance(delta, ReasoningDelta):
            self._reasoning.append(delta.text)
        elif isinstance(delta, ToolCallStart):
            self._calls.append((delta.call_id, delta.name, []))
        else:
            self._calls[delta.index][2].append(delta.fragment)

    def reply(self) -> Reply:
        content, reasoning = "".join(self._content), "".join(self._reasoning) or None
        calls = tuple(ToolCall(call_id, FunctionCall(name, "".join(parts))) for call_id, name, parts in self._calls)
        return Reply(
            content=None if not content and (calls or reasoning) else content, reasoning=reasoning, tool_calls=calls
        )
