"""Looks through the values a template is given, and shortens long texts among them."""

from collections.abc import Iterator, Mapping
from typing import Any

# A text is cut if it is so many times as long as may be; shorter ones would take as much memory again, all together.
_WORTH_CUTTING = 16


def strings(value: object) -> Iterator[str]:
    """Every string in a JSON-like value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from strings(item)


def shortened(value: Any, max_characters: int) -> Any:
    """A copy of a JSON-like value in which long strings lack their middle. What a template makes of such a string is
    longer than `max_characters` only if it is with the whole string, too.

    Templates cut texts at markers, to leave thoughts out: between two of them, before one or behind one. If a marker
    was in the middle, either the beginning or the end, each `max_characters` long, is part of the whole text as well.
    """
    if isinstance(value, str):
        if len(value) <= _WORTH_CUTTING * max_characters:
            return value
        return value[:max_characters] + value[-max_characters:]
    if isinstance(value, Mapping):
        return {shortened(key, max_characters): shortened(item, max_characters) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(shortened(item, max_characters) for item in value)
    return value
