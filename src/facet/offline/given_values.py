"""Checks what callers give for arguments, and shows it in an error's one line. Knows no argument by name."""

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from facet.errors import RequestError


def shown(value: object) -> str:
    """A value in a few words on one line: its beginning and its end where it is long."""
    try:
        return " ".join(reprlib.repr(value).split())
    except ValueError:  # an integer of more digits than Python writes
        return "a number too long to show"


def as_list(value: Any) -> list[Any] | None:
    """The items of a list, an array or an iterator, which gives them but once. None: it is nothing like these.

    Arrays and tensors become plain numbers. A text, bytes and a mapping are one thing, not several.
    """
    if hasattr(value, "tolist") and not isinstance(value, memoryview):
        value = value.tolist()
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        return None
    try:
        items: Iterator[Any] = iter(value)
    except TypeError:
        return None
    return list(items)


def require_bool(value: object, field: str) -> None:
    if not isinstance(value, bool):
        raise RequestError(f"{field} is {shown(value)}, but must be True or False.", field=field)


def require_mapping(value: object, field: str, example: str) -> None:
    """Refuses what is no mapping. None is one that was left out."""
    if value is not None and not is_named(value):
        raise RequestError(f"{field} is {shown(value)}, but must be a mapping such as {example}.", field=field)


def is_named(value: object) -> bool:
    """Whether it is a mapping of names, as a JSON object is."""
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
