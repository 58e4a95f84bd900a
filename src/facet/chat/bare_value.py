"""Reads a value without quotes: a number, a literal, or a string whose delimiters were forgotten.

In an object a comma may end such a value or be part of it. That is decided by what follows: `city:Paris, France`
is one value, `city:Paris, unit:C` is two.
"""

import json

from facet.chat.call_syntax import bare_json, bare_prefix_json, escape, is_plain_key, scalar_json

CLOSER_OF = {"{": "}", "[": "]", "(": ")"}


class BareValue:
    """One value being read."""

    def __init__(self) -> None:
        self._text = ""
        self._last_comma: int | None = None  # where the value may have ended
        self._openers: list[str] = []

    def add(self, text: str) -> None:
        """Adds text that is part of the value."""
        if text in CLOSER_OF:
            self._openers.append(text)
        self._text += text

    def add_comma(self) -> None:
        """A comma that may be the end of the value. A second one in a row is ignored."""
        if not self.ends_in_comma:
            self._last_comma = len(self._text)
            self._text += ","

    def take_closer(self, closer: str) -> bool:
        """Takes a bracket that closes one of the value's own."""
        if not self.is_in_brackets or CLOSER_OF[self._openers[-1]] != closer:
            return False
        self._openers.pop()
        self._text += closer
        return True

    @property
    def is_in_brackets(self) -> bool:
        return bool(self._openers)

    @property
    def is_in_quotes(self) -> bool:
        return self._text.count('"') % 2 == 1

    @property
    def ends_in_comma(self) -> bool:
        return self._last_comma is not None and not self.after_comma

    @property
    def after_comma(self) -> str:
        """The words since the last comma: the next key, if `begins_pair`."""
        return "" if self._last_comma is None else self._text[self._last_comma + 1 :].strip()

    def begins_pair(self) -> bool:
        """Whether the last comma was the end of the value, given that a colon comes now."""
        if self._last_comma is None or not self.after_comma:
            return False
        # "12, some key:" can only be a number and a key; "Well, the thing is:" is a sentence.
        return is_plain_key(self.after_comma) or scalar_json(self._before_comma()) is not None

    def json(self, *, is_before_comma: bool = False) -> str:
        """The whole value, or the part before the last comma. A trailing comma is no part of it."""
        return bare_json(self._before_comma() if is_before_comma or self.ends_in_comma else self._text)

    def string_json(self) -> str:
        """The value as a string, whatever it looks like."""
        return json.dumps(self._text.strip(), ensure_ascii=False)

    def cut(self) -> tuple[str, str]:
        """The beginning of the value's JSON, and the beginning of the next key's if the value is whole."""
        value_json = scalar_json(self._before_comma())
        if self._last_comma is None or value_json is None:
            return bare_prefix_json(self._text), ""
        return value_json, escape(self.after_comma)

    def _before_comma(self) -> str:
        return self._text[: self._last_comma].strip()
