"""Converts the values given for a request's fields to plain numbers and tuples, or refuses them by field."""

import math
import numbers
import operator
from collections.abc import Iterable, Mapping

from facet.errors import RequestError


def as_float(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise RequestError(f"{field} must be a number, not {value!r}.", field=field)
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        number = math.inf
    if not math.isfinite(number):
        raise RequestError(f"{field} is {number}, but must be a finite number.", field=field)
    return number


def as_int(value: object, field: str) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]  # the TypeError is the test
        except TypeError:
            pass
    raise RequestError(f"{field} must be an integer, not {value!r}.", field=field)


def as_strings(value: Iterable[object] | None, field: str) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else tuple(_iterate(value, field))
    for string in strings:
        if not isinstance(string, str):
            raise RequestError(f"{field} must hold strings, not {string!r}.", field=field)
    return tuple(str(string) for string in strings)


def as_token_ids(value: Iterable[object] | None, field: str) -> tuple[int, ...]:
    token_ids = tuple(as_int(token_id, field) for token_id in _iterate(value, field))
    for token_id in token_ids:
        if token_id < 0:
            raise RequestError(f"{field} names token {token_id}, but token ids are 0 or more.", field=field)
    return token_ids


def as_biases(
    value: Mapping[int, float] | tuple[tuple[int, float], ...],
) -> tuple[tuple[int, float], ...] | None:
    try:
        biases = dict(value)
    except (TypeError, ValueError):
        raise RequestError(f"logit_bias must map token ids to numbers, not {value!r}.", field="logit_bias") from None
    ids = as_token_ids(biases, "logit_bias")
    values = (as_float(bias, "logit_bias") for bias in biases.values())
    return tuple(sorted(zip(ids, values, strict=True))) or None


def _iterate(value: Iterable[object] | None, field: str) -> Iterable[object]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise RequestError(f"{field} must be a list, not {value!r}.", field=field)
    return value
