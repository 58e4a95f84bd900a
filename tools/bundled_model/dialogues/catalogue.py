"""Generates tools as people really declare them, with requests as people really make them.

Together with thousands of made-up tools, these few dozen teach how people ask for weather, mail or timers. A request
names its values in braces; the tool's optional parameters are passed where the request has them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tools.bundled_model.dialogues.conversation import Call, Parameter, ParameterType, Tool, Value
from tools.bundled_model.dialogues.requests import Request
from tools.bundled_model.dialogues.words import Source

ValueMaker = Callable[[Source], Value]


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter under one of several names."""

    names: str  # separated by spaces; requests use the first
    make: ValueMaker
    descriptions: str  # separated by bars
    type: ParameterType = "string"
    choices: tuple[str, ...] = ()
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    names: str
    descriptions: tuple[str, ...]
    fields: tuple[Field, ...]
    requests: tuple[str, ...]


def declare(source: Source, entry: Entry) -> tuple[Tool, dict[str, str]]:
    """The tool under names of its own, and each field's name by the one that requests use."""
    chosen = {field.names.split()[0]: source.pick(field.names.split()) for field in entry.fields}
    parameters = [
        Parameter(
            chosen[field.names.split()[0]],
            field.type,
            source.pick(field.descriptions.split("|")) if source.chance(0.85) else "",
            field.choices,
            field.is_required,
        )
        for field in entry.fields
    ]
    parameters.sort(key=lambda parameter: parameter.name.lower())
    tool = Tool(source.pick(entry.names.split()), source.pick(entry.descriptions), tuple(parameters))
    return tool, chosen


def ask(source: Source, entry: Entry, tool: Tool, chosen: dict[str, str]) -> Request:
    """A request for this tool, with fresh values."""
    template = source.pick(entry.requests)
    makers = {field.names.split()[0]: field.make for field in entry.fields}
    said = {name: make(source) for name, make in makers.items() if f"{{{name}}}" in template}
    text = template
    for name, value in said.items():
        text = text.replace(f"{{{name}}}", str(value))
    if source.chance(0.12):
        text = text[0].lower() + text[1:]
    return Request(text, Call(tool.name, {chosen[name]: value for name, value in said.items()}))
