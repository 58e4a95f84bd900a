"""Reads the inside of one tool-call block, symbol by symbol, into names and JSON arguments.

A block is the text between <|tool_call> and <tool_call|>: `call:NAME{...}`. Other forms that models write there are
read too: without `call:`, with parentheses, several calls in one block, and JSON that names the
function inside, as in {"name": "f", "arguments": {...}}. A call is announced with its first key or its closing
bracket; until then a block that is not a call can still be returned as text.

Knows neither tokens nor call ids (gemma_reply.py).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from facet.chat.call_arguments import ArgumentsReader
from facet.chat.json_text import DECODER, is_json_object
from facet.chat.quoted_text import as_text

_NAME = r"[\"'`]?(?P<name>\w[\w.:/-]*?)[\"'`]?\s*[:=]?\s*"
# With "call:" in front any words may come before it; they are given back as text.
_CALL = re.compile(rf"(?P<before>.*?)\b(?:tool_)?call\s*[:=]\s*{_NAME}", re.DOTALL)
# Without it the name must come first, perhaps after another word for the same, or after what is left of the prefix.
_NAME_ALONE = re.compile(rf"\s*(?P<before>)(?:call\s+|(?:tool|function|function_call)?\s*[:=]\s*)?{_NAME}")
# What may still become the header of a call.
_HEADER_BEGUN = re.compile(r"\s*(?:\w+\s*[:=]\s*)?[\"'`]?[\w.:/-]*[\"'`]?\s*[:=]?\s*")
_NO_NAME = re.compile(r"\s*(?:call\s*[:=]\s*)?")
# Brackets and commas left over between two calls, or after the last, mean nothing.
_LEFT_OVER = re.compile(r"[\s,;)\]}]*")

# More than any name needs. What is longer is prose, and is not searched again at each of its brackets.
_MAX_HEADER_CHARS = 256

_NAME_FIELDS = ("name", "tool_name", "function_name", "function")
_ARGUMENT_FIELDS = ("arguments", "parameters", "args", "input")


@dataclass(frozen=True, slots=True)
class CallNamed:
    """A call begins."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of the call last named."""

    fragment: str


@dataclass(frozen=True, slots=True)
class UnreadText:
    """What could not be read as part of any call."""

    text: str


CallEvent = CallNamed | CallArguments | UnreadText


class CallReader:
    """The reading state of one block."""

    def __init__(self) -> None:
        self._events: list[CallEvent] = []
        self._raw = ""  # the text of the call being read, while it may still have to be given back
        self._name: str | None = None  # None: the arguments will say it
        self._before = ""  # words before "call:"
        self._arguments: ArgumentsReader | None = None
        self._json = ""
        self._is_announced = False

    def take(self, symbol: str) -> None:
        """The next character, or the delimiter token as QUOTE."""
        if self._arguments is None:
            self._take_header(symbol)
            return
        if not self._is_announced:
            self._raw += as_text(symbol)
        self._arguments.take(symbol)
        if self._arguments.is_closed:
            self._settle()

    def take_text(self, text: str) -> None:
        """A run of characters. Fast, because long strings, such as files, are most of what calls contain."""
        if self._is_announced and self._arguments is not None:
            text = self._arguments.take_text(text)
        for character in text:
            self.take(character)

    def take_events(self) -> list[CallEvent]:
        """The events that became certain since the last call."""
        if self._arguments is not None and self._name is not None:
            if self._arguments.has_pairs:
                self._announce()
            if self._is_announced and (fragment := self._arguments.take_json()):
                self._events.append(CallArguments(fragment))
        events, self._events = self._events, []
        return events

    def end(self) -> list[CallEvent]:
        """The block is over; what is open is closed. Half a string is not: nobody must take it for the whole."""
        if self._arguments is not None and self._arguments.is_in_string and self._name is not None:
            return self.cut()
        if self._arguments is not None and self._arguments.is_in_string:
            self._give_back(self._raw)
        elif self._arguments is not None:
            self._arguments.end()
            self._settle()
        elif (header := _CALL.fullmatch(self._raw[: _MAX_HEADER_CHARS + 1])) is not None:
            # `call:NAME`, no brackets: no arguments.
            self._give_back(header["before"])
            self._events += [CallNamed(header["name"]), CallArguments("{}")]
        elif not _LEFT_OVER.fullmatch(self._raw):
            self._give_back(self._raw)
        return self.take_events()

    def cut(self) -> list[CallEvent]:
        """The reply was cut off: arguments stay as far as they came; a call that has no name yet says nothing."""
        arguments = self._arguments
        if arguments is None or self._name is None or (arguments.unread and not arguments.has_pairs):
            is_call_begun = arguments is not None or _HEADER_BEGUN.fullmatch(self._raw[: _MAX_HEADER_CHARS + 1])
            if self._name is not None or not is_call_begun:
                self._give_back(self._raw)
            return self.take_events()
        self._announce()
        arguments.cut()
        return [*self.take_events(), *(UnreadText(text) for text in arguments.unread if text.strip())]

    def _take_header(self, symbol: str) -> None:
        header = self._raw
        if not header and _LEFT_OVER.fullmatch(symbol):
            return
        self._raw += as_text(symbol)
        if symbol not in ("{", "(", "[") or len(header) > _MAX_HEADER_CHARS:
            return
        match = _CALL.fullmatch(header) or _NAME_ALONE.fullmatch(header)
        if match is not None and symbol != "[":
            self._name, self._before = match["name"], match["before"]
        elif match is not None or symbol == "(" or not _NO_NAME.fullmatch(header):
            return  # a bracket among other words
        self._arguments = ArgumentsReader(symbol)

    def _announce(self) -> None:
        if not self._is_announced and self._name is not None:
            self._is_announced = True
            self._give_back(self._before)
            self._events.append(CallNamed(self._name))

    def _settle(self) -> None:
        """The arguments are closed: the call is complete, or the block was not a call."""
        assert self._arguments is not None, "only arguments that were begun can end"
        if self._name is None:
            calls = list(_named_inside(self._arguments.take_json()))
            if not calls or self._arguments.unread:
                self._give_back(self._raw)
            else:
                for name, arguments_json in calls:
                    self._events += [CallNamed(name), CallArguments(arguments_json)]
        elif not self._arguments.has_pairs and self._arguments.unread:
            self._give_back(self._raw)
        else:
            self._announce()
            self._events.append(CallArguments(self._arguments.take_json()))
            for text in self._arguments.unread:
                self._give_back(text)
        self._raw, self._name, self._before, self._arguments, self._is_announced = "", None, "", None, False

    def _give_back(self, text: str) -> None:
        if text.strip():
            self._events.append(UnreadText(text))


def _named_inside(json_text: str) -> Iterator[tuple[str, str]]:
    """The calls in JSON that carries its own names: one object, or a list of them. Nothing if it is not that."""
    try:
        items = list(_elements(json_text)) if json_text.startswith("[") else [json_text]
        calls = [_named_call(item) for item in items]
    except RecursionError:  # Python's reader gives up on arguments nested a thousand deep
        return
    if None not in calls:
        yield from (call for call in calls if call is not None)


def _named_call(json_text: str) -> tuple[str, str] | None:
    members = dict(_members(json_text))
    function = members.get("function", "")
    if function.startswith("{"):  # {"type": "function", "function": {...}}
        members = dict(_members(function))
    name_json = next((members[field] for field in _NAME_FIELDS if members.get(field, "").startswith('"')), None)
    arguments = next((members[field] for field in _ARGUMENT_FIELDS if field in members), "{}")
    if name_json is None:
        return None
    name = json.loads(name_json)
    if arguments.startswith('"'):  # JSON inside a string
        arguments = json.loads(arguments)
        if not is_json_object(arguments):
            return None
    elif arguments == "null":
        arguments = "{}"
    return (name, arguments) if arguments.lstrip().startswith("{") and name.isprintable() and name else None


def _members(json_text: str) -> Iterator[tuple[str, str]]:
    """The members of a JSON object, each value as it is written. The text is compact: no white space between."""
    if not json_text.startswith("{"):
        return
    position = 1
    while json_text[position] != "}":
        key, position = DECODER.raw_decode(json_text, position)
        _, end = DECODER.raw_decode(json_text, position + 1)
        yield key, json_text[position + 1 : end]
        position = end + (json_text[end] == ",")


def _elements(json_text: str) -> Iterator[str]:
    position = 1
    while json_text[position] != "]":
        _, end = DECODER.raw_decode(json_text, position)
        yield json_text[position:end]
        position = end + (json_text[end] == ",")
