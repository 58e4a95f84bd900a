"""Converts the inside of one quoted string of a call to the inside of a JSON string.

Between delimiter tokens text is raw. Between JSON's or Python's quotes a backslash escapes. Brackets, quotes
and spaces at the end are held back: if the string is never closed, they were not part of it.
"""

import re
from collections.abc import Sequence
from typing import Final

from facet.chat.call_syntax import QUOTE, escape

QUOTE_SYMBOLS: Final = frozenset({QUOTE, '"', "'", "`"})

_HELD_BACK = "}]) \t\r\n\"'`"
_OTHER_QUOTES = ('"', "'", "`")
_JSON_ESCAPES = frozenset('"\\/bfnrt')  # written the same in JSON
_NUM_HEX_DIGITS = {"u": 4, "x": 2, "U": 8}
_HEX_DIGITS = re.compile(r"[0-9a-fA-F]+")
_LARGEST_CODE_POINT = 0x10FFFF


def as_text(symbol: str) -> str:
    """A symbol where it means nothing but itself: the delimiter token reads as a plain quote."""
    return '"' if symbol == QUOTE else symbol


class QuotedText:
    """One string being read."""

    def __init__(self, quote: str) -> None:
        self.quote = quote
        self._escape = ""  # a backslash and what came after it so far
        self._held = ""

    def closes_with(self, symbol: str) -> bool:
        """Whether this symbol would close the string. The delimiter token closes any string."""
        return symbol == QUOTE or (symbol == self.quote and self._escape != "\\")

    def take(self, symbol: str) -> str:
        """The JSON that this symbol makes certain."""
        if self._escape:
            return self._take_escaped(symbol)
        if symbol == "\\" and self.quote != QUOTE:
            self._escape = symbol
            return self._release()
        if symbol in _HELD_BACK:
            self._held += symbol
            return ""
        return self._release() + escape(symbol)

    def take_raw(self, text: str) -> str:
        """The same for a run of characters between delimiter tokens, where none is special."""
        text = self._held + text
        certain = text.rstrip(_HELD_BACK)
        self._held = text[len(certain) :]
        return escape(certain)

    def ends_in(self, closers: Sequence[str]) -> bool:
        """Whether the text so far ends in some of these brackets, innermost first."""
        return _num_closers_at_end(self._held, "".join(closers)) > 0

    def finish(self, *, closers: Sequence[str]) -> str:
        """The JSON of what was held back, less the brackets in it that close `closers`, innermost first."""
        escaped, self._escape = escape(self._escape), ""
        num_closers = _num_closers_at_end(self._held, "".join(closers))
        if num_closers:
            kept = self._held
            for _ in range(num_closers):
                kept = kept.rstrip()[:-1]
            # A quote of the wrong make before the brackets was meant to close the string.
            without_quote = kept.rstrip()
            self._held = without_quote[:-1] if without_quote.endswith(_OTHER_QUOTES) else kept
        return self._release() + escaped

    def _release(self) -> str:
        held, self._held = self._held, ""
        return escape(held)

    def _take_escaped(self, symbol: str) -> str:
        written = self._escape + symbol
        kind = written[1]
        num_digits = _NUM_HEX_DIGITS.get(kind)
        if num_digits is None:
            self._escape = ""
            if kind in _JSON_ESCAPES:
                return written
            if kind in "'`":
                return escape(kind)
            return "" if kind == "\n" else escape(written)  # an escaped line break continues the line
        if len(written) > 2 and not _HEX_DIGITS.fullmatch(symbol):
            self._escape = ""
            return escape(written[:-1]) + self.take(symbol)
        if len(written) < 2 + num_digits:
            self._escape = written
            return ""
        self._escape = ""
        return _code_point_json(written)


def _code_point_json(written: str) -> str:
    code_point = int(written[2:], 16)
    if written[1] == "u":
        return written  # as JSON has it; two halves of a pair stay two escapes
    if 0xD800 <= code_point <= 0xDFFF:
        return f"\\u{code_point:04x}"  # half a pair is no character, but JSON can spell it
    return escape(chr(code_point)) if code_point <= _LARGEST_CODE_POINT else escape(written)


def _num_closers_at_end(held: str, closers: str) -> int:
    """How many of `closers`, from the first, are what `held` ends in, white space aside."""
    brackets = "".join(held.split())
    for num_closers in range(min(len(closers), len(brackets)), 0, -1):
        if brackets.endswith(closers[:num_closers]):
            return num_closers
    return 0
