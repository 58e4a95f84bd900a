"""Rewrites a regular expression for strings so that it matches them as they are written inside JSON.

In JSON a quote, a backslash and the control characters are written as escapes. The grammar compiler matches the
characters that a model writes, so an expression that names such a character would let it through as it is, and the
answer would not be JSON.
"""

import json
import re

Range = tuple[int, int]  # of code points, both ends included

_ESCAPED = [*range(0x20), ord('"'), ord("\\")]
_ALL: list[Range] = [(0, 0xD7FF), (0xE000, 0x10FFFF)]  # without halves of surrogate pairs
_CLASSES: dict[str, list[Range]] = {
    "d": [(0x30, 0x39)],
    "s": [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0)],
    "w": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
}
_LINE_ENDS: list[Range] = [(0x0A, 0x0A), (0x0D, 0x0D)]
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D, "0": 0x00}

_ESCAPE = r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]+\}|c[A-Za-z]|.)"
_ATOM = re.compile(rf"(?P<escape>{_ESCAPE})|\[(?P<negated>\^?)(?P<members>(?:{_ESCAPE}|[^\]\\])*)\]|.", re.DOTALL)
_MEMBER = re.compile(rf"(?P<low>{_ESCAPE}|.)(?:-(?P<high>{_ESCAPE}|.))?", re.DOTALL)


def json_text_pattern(pattern: str) -> str:
    """A pattern that matches inside JSON's quotes what the given one matches in the string they stand for."""
    return _ATOM.sub(_rewrite, pattern)


def _rewrite(atom: re.Match[str]) -> str:
    text = atom[0]
    if atom["members"] is not None:
        ranges = _members(atom["members"])
        return _characters(_complement(ranges) if atom["negated"] else ranges)
    if text == ".":
        return _characters(_complement(_LINE_ENDS))
    ranges = _ranges_of(text)
    is_plain = len(ranges) == 1 and ranges[0][0] == ranges[0][1] and ranges[0][0] not in _ESCAPED
    return text if is_plain else _characters(ranges)


def _members(text: str) -> list[Range]:
    """The ranges of what stands between brackets."""
    ranges = []
    for member in _MEMBER.finditer(text):
        low = _ranges_of(member["low"])
        if member["high"] is None:
            ranges += low
            continue
        high = _ranges_of(member["high"])
        # Where a class such as \\w stands beside it, a hyphen stands for itself.
        is_range = len(low) == len(high) == 1
        ranges += [(low[0][0], high[0][1])] if is_range else [*low, (ord("-"), ord("-")), *high]
    return ranges


def _ranges_of(text: str) -> list[Range]:
    """The characters that one character or escape stands for."""
    if len(text) == 1:
        return [(ord(text), ord(text))]
    kind, digits = text[1], text[2:].strip("{}")
    if kind.lower() in _CLASSES:
        return _CLASSES[kind] if kind.islower() else _complement(_CLASSES[kind.lower()])
    if kind in "xu" and digits:
        code = int(digits, 16)
    elif kind == "c" and digits:
        code = ord(digits) % 32
    else:
        code = _CONTROLS.get(kind, ord(kind))
    return [(code, code)]


def _complement(ranges: list[Range]) -> list[Range]:
    return _without(_ALL, ranges)


def _without(ranges: list[Range], others: list[Range]) -> list[Range]:
    for low, high in others:
        cut = [((first, min(last, low - 1)), (max(first, high + 1), last)) for first, last in ranges]
        ranges = [part for parts in cut for part in parts if part[0] <= part[1]]
    return ranges


def _characters(ranges: list[Range]) -> str:
    """One character of the ranges, as JSON writes it.

    Of those that JSON escapes, a character without a letter of its own (such as \\n has) is written only where there is
    no other choice: so many alternatives for every dot would cost the compiler more than they are worth.
    """
    plain = "".join(
        _in_class(low) if low == high else f"{_in_class(low)}-{_in_class(high)}"
        for low, high in _without(ranges, [(code, code) for code in _ESCAPED])
    )
    escapes = [json.dumps(chr(code))[1:-1] for code in _ESCAPED if any(low <= code <= high for low, high in ranges)]
    letters = "".join(_in_class(ord(escape[1])) for escape in escapes if len(escape) == 2)
    alternatives = [f"[{plain}]"] * bool(plain) + [f"\\\\[{letters}]"] * bool(letters)
    alternatives = alternatives or [re.escape(escape) for escape in escapes]
    return alternatives[0] if alternatives == [f"[{plain}]"] else f"(?:{'|'.join(alternatives)})"


def _in_class(code: int) -> str:
    return f"\\{chr(code)}" if chr(code) in "\\]^-[" else chr(code)
