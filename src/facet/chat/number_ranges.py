"""Writes the numbers between two bounds as regular expressions over their digits.

A grammar cannot compare numbers, but the numbers of one length between two others of that length fall into few classes
that share a beginning: 37 to 582 is 3[7-9], [4-9]\\d, [1-4]\\d\\d, 5[0-7]\\d, 58[0-2].
"""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

# Longer integers are no longer exact in most languages that will read them.
MAX_INTEGER_DIGITS = 19
MAX_FRACTION_DIGITS = 6

ANY_INTEGER = rf"-?(0|[1-9][0-9]{{0,{MAX_INTEGER_DIGITS - 1}}})"
ANY_NUMBER = rf"{ANY_INTEGER}(\.[0-9]{{1,20}})?([eE][+-]?[0-9]{{1,2}})?"


def integers_between(low: int | None, high: int | None) -> str | None:
    """A regular expression of the integers low .. high; None is no bound. Returns None if there are none."""
    parts = _scaled_between(low, high, num_fraction_digits=0)
    return "|".join(parts) if parts else None


def numbers_between(low: Decimal | None, high: Decimal | None, *, is_low_open: bool, is_high_open: bool) -> str | None:
    """The same for numbers, written with a few decimals; an open bound itself is excluded."""
    # Between two bounds that differ in their last digit only, there is a number with one digit more.
    needed = [_num_fraction_digits(bound) + 1 for bound in (low, high) if bound is not None]
    parts: list[str] = []
    for num_digits in range(max([MAX_FRACTION_DIGITS, *needed]) + 1):
        scale = Decimal(10) ** num_digits
        first = None if low is None else _first_integer(low * scale, is_open=is_low_open)
        last = None if high is None else -_first_integer(-high * scale, is_open=is_high_open)
        parts += _scaled_between(first, last, num_fraction_digits=num_digits)
    return "|".join(parts) if parts else None


def _scaled_between(low: int | None, high: int | None, *, num_fraction_digits: int) -> list[str]:
    """Integers low .. high, each written with the decimal point before its last digits."""
    limit = 10 ** (MAX_INTEGER_DIGITS + num_fraction_digits) - 1
    low = -max(limit, 10 * abs(high or 0)) if low is None else low
    high = max(limit, 10 * abs(low)) if high is None else high
    parts = []
    if low < 0:
        negative = _digits_between(max(1, -high), -low, num_fraction_digits)
        parts += [f"-{digits}" for digits in negative]
    return parts + _digits_between(max(0, low), high, num_fraction_digits)


def _digits_between(low: int, high: int, num_fraction_digits: int) -> list[str]:
    parts = []
    shortest = num_fraction_digits + 1  # a digit stands before the point, if only a zero
    for length in range(max(shortest, len(str(low))), len(str(max(high, 0))) + 1 if high >= low else 0):
        first = max(low, 0 if length == shortest else 10 ** (length - 1))
        last = min(high, 10**length - 1)
        if first <= last:
            point = length - num_fraction_digits if num_fraction_digits else None
            parts += _same_length(str(first).zfill(length), str(last).zfill(length), point)
    if high >= low and len(str(high)) < shortest:
        parts += _same_length(str(low).zfill(shortest), str(high).zfill(shortest), 1)
    return parts


def _same_length(first: str, last: str, point: int | None) -> list[str]:
    """`point`: how many of these digits stand before the decimal point; None: it is not among them."""
    if point == 0:
        return [rf"\.{rest}" for rest in _same_length(first, last, None)]
    if first == last:
        return [first if point is None else rf"{first[:point]}\.{first[point:]}"]
    num_more = len(first) - 1
    after = None if point is None else point - 1
    if set(first) == {"0"} and set(last) == {"9"}:
        return [_any_digits(len(first), point)]
    if first[0] == last[0]:
        return [first[0] + rest for rest in _same_length(first[1:], last[1:], after)]
    if num_more == 0:
        return [f"[{first}-{last}]" + (r"\." if after == 0 else "")]
    low_digit, high_digit = int(first[0]), int(last[0])
    parts = []
    if set(first[1:]) != {"0"}:
        parts += [first[0] + rest for rest in _same_length(first[1:], "9" * num_more, after)]
        low_digit += 1
    tail = []
    if set(last[1:]) != {"9"}:
        tail = [last[0] + rest for rest in _same_length("0" * num_more, last[1:], after)]
        high_digit -= 1
    if low_digit <= high_digit:
        parts.append(_digit_class(low_digit, high_digit) + _any_digits(num_more, after))
    return parts + tail


def _digit_class(low: int, high: int) -> str:
    return str(low) if low == high else f"[{low}-{high}]"


def _any_digits(count: int, point: int | None) -> str:
    if point is None:
        return f"[0-9]{{{count}}}" if count else ""
    return _any_digits(point, None) + r"\." + _any_digits(count - point, None)


def _first_integer(bound: Decimal, *, is_open: bool) -> int:
    """The least integer that is not below the bound, or, of an open one, above it."""
    if is_open:
        return int(bound.to_integral_value(ROUND_FLOOR)) + 1
    return int(bound.to_integral_value(ROUND_CEILING))


def _num_fraction_digits(number: Decimal) -> int:
    exponent = number.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
