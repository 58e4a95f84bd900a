"""Writes values in the syntax of Gemma 4's tool calls, and converts single values of it to JSON.

    call:book{guests:[{name:<|"|>Zoë<|"|>,age:7}],note:null}

Keys are bare, strings are enclosed in delimiter tokens and nothing in them is escaped; numbers, true, false and
null are as in JSON. Reading whole arguments, well or badly written, is done in call_arguments.py.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

# The delimiter token. Where a call is read symbol by symbol, it is the only symbol longer than one character.
QUOTE: Final = '<|"|>'

_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BEGUN_NUMBER = re.compile(r"-?((0|[1-9][0-9]*)((\.[0-9]+)?([eE][+-]?[0-9]*)?|\.))?")
# Numbers JSON does not know but whose meaning is clear. Not "007": that may well be a name.
_OTHER_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>0|[1-9][0-9]*)?(?P<fraction>\.[0-9]*)?(?P<exponent>[eE][+-]?[0-9]+)?"
)
_LITERALS: Final = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_BARE_KEY = re.compile(r"[\w.$@/-]+")


class NumberText(str):
    """A number by its spelling, for values whose numbers must be written exactly as they were."""

    __slots__ = ()


def render_call_arguments(value: Any) -> str:
    """A JSON value in Gemma's syntax; the arguments of a call are a mapping, braces included."""
    match value:
        case None:
            return "null"
        case bool() | int() | float():
            return json.dumps(value, allow_nan=False)
        case NumberText():
            return str(value)
        case str():
            return _delimited(value)
        case Mapping():
            return "{" + ",".join(f"{_key(key)}:{render_call_arguments(item)}" for key, item in value.items()) + "}"
        case Sequence():
            return "[" + ",".join(render_call_arguments(item) for item in value) + "]"
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def escape(text: str) -> str:
    """Text as it is written inside a JSON string. Escaping part by part gives the same as escaping the whole."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def scalar_json(text: str) -> str | None:
    """The JSON of a bare number, true, false or null; None if it is none of these, so a string without quotes."""
    if text in _LITERALS:
        return _LITERALS[text]
    if _JSON_NUMBER.fullmatch(text):
        return text
    number = _OTHER_NUMBER.fullmatch(text)
    if number is None or (number["whole"] is None and len(number["fraction"] or "") < 2):
        return None
    sign = "-" if number["sign"] == "-" else ""
    fraction = {None: "", ".": ".0"}.get(number["fraction"], number["fraction"])
    return f"{sign}{number['whole'] or '0'}{fraction}{number['exponent'] or ''}"


def bare_json(text: str) -> str:
    """The JSON of a value without quotes: a number, a literal, nothing at all, or else a string."""
    text = text.strip()
    return "null" if not text else scalar_json(text) or json.dumps(text, ensure_ascii=False)


def bare_prefix_json(text: str) -> str:
    """The beginning of what `bare_json` may become, for a value that was cut off."""
    text = text.strip()
    if _BEGUN_NUMBER.fullmatch(text) or any(literal.startswith(text) for literal in ("true", "false", "null")):
        return text
    return '"' + escape(text)


def is_plain_key(text: str) -> bool:
    """Whether this could be a key without quotes, rather than some words of a sentence."""
    return _BARE_KEY.fullmatch(text.strip().strip("\"'`")) is not None


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _delimited(key)


def _delimited(text: str) -> str:
    if QUOTE in text:
        raise ValueError(f"a string that holds {QUOTE} cannot be written in this syntax: nothing in it is escaped")
    return f"{QUOTE}{text}{QUOTE}"
