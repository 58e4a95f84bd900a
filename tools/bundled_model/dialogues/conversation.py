"""Defines what a dialogue is: tools, turns, thoughts, calls and results, as plain values.

Knows neither how a dialogue is written as text (rendering.py) nor how one is generated (the other files).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Value = str | int | float | bool | tuple[str, ...]
ParameterType = Literal["string", "integer", "number", "boolean", "array"]


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: ParameterType  # an array holds strings
    description: str = ""
    choices: tuple[str, ...] = ()  # of a string; empty: any text
    is_required: bool = True

    @property
    def words(self) -> str:
        """The name as a user would say it."""
        return spoken(self.name)


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: tuple[Parameter, ...] = ()  # in the order of their names, as templates declare them

    def as_json(self) -> dict[str, Any]:
        """The declaration as a client sends it."""
        properties: dict[str, Any] = {}
        for parameter in self.parameters:
            schema: dict[str, Any] = {"type": parameter.type}
            if parameter.description:
                schema["description"] = parameter.description
            if parameter.choices:
                schema["enum"] = list(parameter.choices)
            if parameter.type == "array":
                schema["items"] = {"type": "string"}
            properties[parameter.name] = schema
        parameters: dict[str, Any] = {"type": "object", "properties": properties}
        required = [parameter.name for parameter in self.parameters if parameter.is_required]
        if required:
            parameters["required"] = required
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Call:
    tool_name: str
    arguments: Mapping[str, Value]

    def arguments_as_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self.arguments.items()}


@dataclass(frozen=True, slots=True)
class UserTurn:
    text: str


@dataclass(frozen=True, slots=True)
class ReplyTurn:
    """What the model produces between two stops: a text, or calls and then the results the client sent for them.

    After results the next turn is a reply again: the same model turn goes on. Calls without results end a dialogue.
    """

    text: str = ""
    thought: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dialogue:
    kind: str  # which maker made it; for counting and for evaluation
    turns: tuple[UserTurn | ReplyTurn, ...]
    tools: tuple[Tool, ...] = ()
    system: str = ""
    thinks: bool = False  # if not, the thoughts of its turns stay unsaid

    @property
    def last_user_turn(self) -> int:
        return max(index for index, turn in enumerate(self.turns) if isinstance(turn, UserTurn))

    def messages(self, num_turns: int | None = None) -> list[dict[str, Any]]:
        """The first turns as the messages a client would send; all of them by default."""
        messages: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []
        num_calls = 0
        for turn in self.turns[:num_turns]:
            if isinstance(turn, UserTurn):
                messages.append({"role": "user", "content": turn.text})
                continue
            message: dict[str, Any] = {"role": "assistant", "content": turn.text}
            if self.thinks and turn.thought:
                message["reasoning"] = turn.thought
            call_ids = [f"call_{num_calls + index}" for index in range(len(turn.calls))]
            num_calls += len(turn.calls)
            if turn.calls:
                message["tool_calls"] = [
                    {
                        "id": call_id,
                        "type": "function",
                        "function": {"name": call.tool_name, "arguments": call.arguments_as_json()},
                    }
                    for call_id, call in zip(call_ids, turn.calls, strict=True)
                ]
            messages.append(message)
            messages += [
                {"role": "tool", "tool_call_id": call_id, "content": result}
                for call_id, result in zip(call_ids, turn.results, strict=False)
            ]
        return messages


def spoken(name: str) -> str:
    """An identifier as words: max_results and maxResults are both "max results"."""
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
    return spaced.replace("_", " ").strip()


def listed(items: "list[str] | tuple[str, ...]") -> str:
    """Words in a row: a, b and c."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer in words, for dialogues that need no tool."""

    question: str
    answer: str
    thought: str
