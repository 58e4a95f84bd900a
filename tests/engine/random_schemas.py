"""Random schemas of tools' parameters, and a reader of calls that shares nothing with the one in src/facet."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

WORDS = ("city", "unit", "when", "Limit", "max_results", "is_open", "note", "tags", "x-y", "über", "two words")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def random_parameters(choose: random.Random) -> dict[str, Any]:
    """Shallow enough for calls to end soon: strings and arrays have bounds."""
    definitions = {"part": _object(choose, 2), "level": {"enum": ["low", "high", 3]}}
    return {**_object(choose, 0), "$defs": definitions}


def _object(choose: random.Random, depth: int) -> dict[str, Any]:
    names = choose.sample(WORDS, choose.choice([0, 1, 2, 3, 4, 7]) if depth < 2 else choose.randrange(3))
    properties = {name: random_schema(choose, depth + 1) for name in names}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [name for name in names if choose.random() < 0.5]:
        schema["required"] = required
    if not names and choose.random() < 0.5:
        return {"type": "object", "additionalProperties": {"type": ["boolean", "integer"]}, "maxProperties": 2}
    if choose.random() < 0.3:
        schema["additionalProperties"] = False
    if choose.random() < 0.1 and 1 < len(names) <= 4:
        schema["minProperties"] = 1
        schema["maxProperties"] = max(len(required), 2)
    return schema


def random_schema(choose: random.Random, depth: int) -> dict[str, Any]:
    scalars = [_string, _string, _enum, _integer, _number, _constant, _simple, _reference]
    nested = [_array, _object, _any_of, _several_types]
    return choose.choice(scalars if depth >= 3 else [*scalars, *nested, *nested])(choose, depth)


def _string(choose: random.Random, depth: int) -> dict[str, Any]:
    return {
        "type": "string",
        **choose.choice(
            [
                {"maxLength": choose.randrange(6)},
                {"minLength": 2, "maxLength": choose.randrange(2, 9)},
                {"pattern": choose.choice(["^[a-z]{1,3}$", "^(yes|no)$", r"^\d{2}-\d{2}$", "^a/b$|^c$"])},
                {"format": choose.choice(["date", "uuid", "date-time", "ipv4"])},
            ]
        ),
    }


def _enum(choose: random.Random, depth: int) -> dict[str, Any]:
    values: list[Any] = [
        "celsius",
        'a "quoted" {thing}',
        "été",
        "line\nend",
        "",
        7,
        -2.5,
        None,
        True,
        [1, "x"],
        {"k": 1},
    ]
    return {"enum": choose.sample(values, choose.randrange(1, 4))}


def _constant(choose: random.Random, depth: int) -> dict[str, Any]:
    return {"const": choose.choice(["fixed", 3, False])}


def _integer(choose: random.Random, depth: int) -> dict[str, Any]:
    low = choose.randrange(-300, 300)
    bounds = {"minimum": low, "maximum": low + choose.choice([0, 5, 1000]), "exclusiveMinimum": low - 1}
    return {"type": "integer", **{key: bounds[key] for key in choose.sample(list(bounds), choose.randrange(4))}}


def _number(choose: random.Random, depth: int) -> dict[str, Any]:
    low = choose.randrange(-30, 30) / 10
    bounds = {"minimum": low, "exclusiveMaximum": low + choose.choice([0.1, 0.75, 100])}
    return {"type": "number", **{key: bounds[key] for key in choose.sample(list(bounds), choose.randrange(3))}}


def _simple(choose: random.Random, depth: int) -> dict[str, Any]:
    return {"type": choose.choice(["boolean", "null"])}


def _reference(choose: random.Random, depth: int) -> dict[str, Any]:
    return (
        {"$ref": choose.choice(["#/$defs/level", "#/$defs/level", "#/$defs/part"])} if depth < 2 else {"type": "null"}
    )


def _array(choose: random.Random, depth: int) -> dict[str, Any]:
    low = choose.randrange(3)
    items = random_schema(choose, depth + 1)
    if choose.random() < 0.2:
        return {"type": "array", "prefixItems": [items, {"type": "boolean"}], "items": False}
    return {"type": "array", "items": items, "minItems": low, "maxItems": low + choose.randrange(3)}


def _any_of(choose: random.Random, depth: int) -> dict[str, Any]:
    if choose.random() < 0.3:
        return {"oneOf": [{"type": "boolean"}, _string(choose, depth), {"type": "null"}]}
    return {"anyOf": [random_schema(choose, depth + 1) for _ in range(choose.randrange(1, 4))]}


def _several_types(choose: random.Random, depth: int) -> dict[str, Any]:
    return {"type": choose.sample(["integer", "boolean", "null", "number"], 2)}


class CallReader:
    """One call, as pieces of text and special tokens by name, read by the grammar of the specification."""

    def __init__(self, pieces: Sequence[str], specials: frozenset[str]) -> None:
        self._symbols: list[str] = []
        for piece in pieces:
            self._symbols += [piece] if piece in specials else list(piece)
        self._place = 0

    def read(self) -> tuple[str, Any]:
        self._expect("<|tool_call>", *"call:")
        name = self._until("{")
        arguments = self._object()
        self._expect("<tool_call|>")
        assert self._place == len(self._symbols), "something follows the call"
        return name, arguments

    def _value(self) -> Any:
        if self._next == '<|"|>':
            return self._string()
        if self._next == "{":
            return self._object()
        if self._next == "[":
            return self._array()
        text = ""
        while self._next not in (",", "}", "]"):
            text += self._take()
        constants: Mapping[str, Any] = {"true": True, "false": False, "null": None}
        if text in constants:
            return constants[text]
        assert _NUMBER.fullmatch(text), f"{text!r} is no value"
        return float(text) if set(text) & set(".eE") else int(text)

    def _string(self) -> str:
        self._expect('<|"|>')
        text = self._until('<|"|>')
        self._expect('<|"|>')
        return text

    def _object(self) -> dict[str, Any]:
        self._expect("{")
        found: dict[str, Any] = {}
        while self._next != "}":
            if found:
                self._expect(",")
            key = self._string() if self._next == '<|"|>' else self._until(":")
            assert key not in found, f"{key!r} twice"
            self._expect(":")
            found[key] = self._value()
        self._expect("}")
        return found

    def _array(self) -> list[Any]:
        self._expect("[")
        found: list[Any] = []
        while self._next != "]":
            if found:
                self._expect(",")
            found.append(self._value())
        self._expect("]")
        return found

    @property
    def _next(self) -> str:
        return self._symbols[self._place]

    def _take(self) -> str:
        self._place += 1
        return self._symbols[self._place - 1]

    def _until(self, end: str) -> str:
        text = ""
        while self._next != end:
            assert self._next == '<|"|>' or not self._next.startswith("<|") or len(self._next) == 1, self._next
            text += self._take()
        return text

    def _expect(self, *symbols: str) -> None:
        for symbol in symbols:
            assert self._next == symbol, f"{self._next!r} where {symbol!r} was expected"
            self._place += 1
