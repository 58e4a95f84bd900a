"""Compares values given for the settings of `LLM` with the types of a config's fields."""

import operator
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from facet.config import ContextLength, PromptConfig
from facet.errors import ConfigError
from facet.offline.given_values import as_list, is_named, shown

_FIELDS = {field.name: field for field in fields(PromptConfig)}
_HINTS = typing.get_type_hints(PromptConfig)


@dataclass(frozen=True, slots=True)
class _Kind:
    wanted: str  # in words
    convert: Callable[[Any], Any]  # raises TypeError for a value of another kind
    several: str = ""  # in words, where a list of them is wanted


def checked(name: str, value: object) -> Any:
    """The value of a setting as its field has it: tuples of lists, plain numbers of numpy's."""
    field, kind = _FIELDS[name], _kind_of(_HINTS[name])
    try:
        converted = kind.convert(value)
    except (TypeError, OverflowError):
        given = shown(value) if field.repr else f"of type {type(value).__name__}"  # it may be a secret
        raise ConfigError(f"{name} is {given}, but must be {kind.wanted}.") from None
    choices = field.metadata["choices"]
    if choices is not None and converted not in choices:
        raise ConfigError(f"{name} is {shown(value)}, but must be one of {', '.join(choices)}.")
    return converted


def require_switch(name: str, value: object) -> None:
    """For an argument that is no field."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {shown(value)}, but must be {_SWITCH.wanted}.")


def _kind_of(hint: Any) -> _Kind:
    if hint == ContextLength:
        return _Kind("an integer or 'auto'", lambda value: value if value == "auto" else _as_int(value))
    if isinstance(hint, types.UnionType):
        hint = next(part for part in hint.__args__ if part is not type(None))
    if typing.get_origin(hint) is tuple:
        item = _kind_of(typing.get_args(hint)[0])
        return _Kind(f"a list of {item.several}", lambda value: tuple(map(item.convert, _items(value))))
    if typing.get_origin(hint) is Mapping:
        return _NAMED
    return _PLAIN[hint]


def _as_switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _as_int(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _as_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    return float(value)


def _as_text(value: Any) -> str:
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError
    return text


def _as_named(value: Any) -> Any:
    if not is_named(value):
        raise TypeError
    return value


def _items(value: Any) -> list[Any]:
    items = as_list(value)
    if items is None:
        raise TypeError
    return items


_SWITCH = _Kind("True or False", _as_switch)
_NAMED = _Kind('a dict such as {"name": value}', _as_named)
_PLAIN = {
    bool: _SWITCH,
    int: _Kind("an integer", _as_int, "integers"),
    float: _Kind("a number", _as_float),
    str: _Kind("a text", _as_text, "texts"),
}
