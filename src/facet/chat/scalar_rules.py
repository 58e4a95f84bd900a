"""Writes the strings and numbers of a JSON schema as regular expressions over their text."""

import re
from decimal import Decimal
from typing import Any

from facet.chat.number_ranges import ANY_INTEGER, ANY_NUMBER, integers_between, numbers_between
from facet.chat.patterns import TEXT_CHARACTER, whole_match
from facet.chat.schema_merge import Refuse, Schema

MAX_LENGTH = 100_000  # of strings and arrays, where a bound is given at all
MAX_MIN_LENGTH = 64  # each character that must be there costs the compiler a pass over the vocabulary
MAX_MULTIPLES = 256
# One character that is repeated is text of bounded length. Up to so many times, the compiler may well count.
_REPEATED = re.compile(r"\^(\[(?:\\.|[^\]\\])+\]|\\[dws]|\.)\{(\d+),(\d+)\}\$", re.DOTALL)
_FEW = 16

_DIGIT, _HEX = "[0-9]", "[0-9a-f]"
_DATE = (
    f"{_DIGIT}{{4}}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]{_DIGIT}|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]{_DIGIT}|30)"
    f"|02-(?:0[1-9]|1{_DIGIT}|2[0-8]))"
)
_HOUR_AND_MINUTE = f"(?:[01]{_DIGIT}|2[0-3]):[0-5]{_DIGIT}"
_TIME = f"{_HOUR_AND_MINUTE}:[0-5]{_DIGIT}(?:\\.{_DIGIT}{{1,6}})?(?:Z|[+-]{_HOUR_AND_MINUTE})"
_BYTE = f"(?:25[0-5]|2[0-4]{_DIGIT}|1{_DIGIT}{{2}}|[1-9]?{_DIGIT})"
# A format is an annotation; those that are simple are honoured all the same.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "ipv4": f"{_BYTE}(?:\\.{_BYTE}){{3}}",
    "email": "[A-Za-z0-9_%+-]+(?:\\.[A-Za-z0-9_%+-]+)*@(?:[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*\\.)+[A-Za-z]{2,}",
}


def string_pattern(schema: Schema, field: str, refuse: Refuse) -> tuple[str, int | None]:
    """A regular expression, and how many characters may match it at most."""
    low, high = bounds_of(schema, "minLength", "maxLength", refuse)
    pattern, known = schema.get("pattern"), FORMATS.get(str(schema.get("format")))
    if high is not None and high < low:
        raise refuse(f"minLength {low} with maxLength {high}")
    if low > MAX_MIN_LENGTH:
        raise refuse(f"minLength {low}, above {MAX_MIN_LENGTH},")
    if pattern is None and known is None:
        return ("()", None) if high == 0 else (TEXT_CHARACTER + (f"{{{low},}}" if low else "*"), high)
    if low or high is not None:
        raise refuse(f"{'format' if pattern is None else 'pattern'} together with minLength or maxLength")
    if pattern is None:
        assert known is not None
        return known, None
    if not isinstance(pattern, str):
        raise refuse(f"pattern {pattern!r}")
    repeated = _REPEATED.fullmatch(pattern)
    if repeated is not None and int(repeated[3]) > _FEW:
        return whole_match(f"^{repeated[1]}{{{repeated[2]},}}$", field), min(int(repeated[3]), MAX_LENGTH)
    return whole_match(pattern, field), None


def integer_pattern(schema: Schema, refuse: Refuse) -> str:
    low, high, is_low_open, is_high_open = _range(schema, refuse)
    first = None if low is None else int(low // 1) + int(low % 1 > 0 or is_low_open)
    last = None if high is None else -int(-high // 1) - int(-high % 1 > 0 or is_high_open)
    factor = schema.get("multipleOf", 1)
    if factor != 1:
        return _multiples(factor, first, last, refuse)
    if first is None and last is None:
        return ANY_INTEGER
    return _some(integers_between(first, last), refuse)


def number_pattern(schema: Schema, refuse: Refuse) -> str:
    low, high, is_low_open, is_high_open = _range(schema, refuse)
    if "multipleOf" in schema:
        raise refuse("multipleOf of a number that is not an integer")
    if low is None and high is None:
        return ANY_NUMBER
    return _some(numbers_between(low, high, is_low_open=is_low_open, is_high_open=is_high_open), refuse)


def bounds_of(schema: Schema, low: str, high: str, refuse: Refuse) -> tuple[int, int | None]:
    """The bounds of a count: the least, and the most or None."""
    least, most = schema.get(low, 0), schema.get(high)
    for keyword, bound in ((low, least), (high, most)):
        if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool) or bound < 0):
            raise refuse(f"{keyword} {bound!r}")
    if least > MAX_LENGTH:
        raise refuse(f"{low} {least}, above {MAX_LENGTH},")
    return least, None if most is None else min(most, MAX_LENGTH)


def _multiples(factor: Any, first: int | None, last: int | None, refuse: Refuse) -> str:
    """A rule for multiples, of which each is spelled out: there are few."""
    is_whole = isinstance(factor, int) and not isinstance(factor, bool) and factor > 0
    if not is_whole or first is None or last is None or (last - first) // factor > MAX_MULTIPLES:
        raise refuse(f"multipleOf {factor!r} without close bounds")
    multiples = range(-(-first // factor) * factor, last + 1, factor)
    return _some("|".join(map(str, multiples)), refuse)


def _some(pattern: str | None, refuse: Refuse) -> str:
    if not pattern:
        raise refuse("a number whose bounds leave nothing between them")
    return pattern


def _range(schema: Schema, refuse: Refuse) -> tuple[Decimal | None, Decimal | None, bool, bool]:
    """Both bounds, and whether each is itself excluded."""
    low, high = _decimal(schema, "minimum", refuse), _decimal(schema, "maximum", refuse)
    open_low, open_high = _decimal(schema, "exclusiveMinimum", refuse), _decimal(schema, "exclusiveMaximum", refuse)
    is_low_open = schema.get("exclusiveMinimum") is True  # as drafts up to 4 wrote it
    is_high_open = schema.get("exclusiveMaximum") is True
    if open_low is not None and (low is None or open_low >= low):
        low, is_low_open = open_low, True
    if open_high is not None and (high is None or open_high <= high):
        high, is_high_open = open_high, True
    return low, high, is_low_open, is_high_open


def _decimal(schema: Schema, keyword: str, refuse: Refuse) -> Decimal | None:
    value = schema.get(keyword)
    if value is None or isinstance(value, bool):
        return None
    if not isinstance(value, int | float) or not abs(value) <= 1e30:
        raise refuse(f"{keyword} {value!r}")
    return Decimal(repr(value))
