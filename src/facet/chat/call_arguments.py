"""Converts the arguments of one tool call to JSON, symbol by symbol, each part as early as it is certain.

Every input can be read. The syntax that Gemma was taught is read exactly; for everything else, the rules below choose
what the model most likely meant, and drop nothing but surplus commas and brackets:

- strings may have JSON's or Python's quotes, or none; then they end at a comma before the next key, or at a bracket
- a quote that nothing structural follows (comma, bracket, end) belongs to the string
- a word and a colon after a delimited string are the next key: a comma was forgotten
- "=" may stand for ":"; True, False and None for their JSON names; commas may trail or be missing
- a bracket closes everything opened after its partner; what is open when the call ends is closed
- braces inside braces, as in f({...}) or f{{...}}, are one pair; a key without value has null
- a value without a key has no place in an object: it is put aside in `unread`

Knows neither tokens nor where a call begins (call_reader.py).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from facet.chat.bare_value import CLOSER_OF, BareValue
from facet.chat.call_syntax import QUOTE, escape, is_plain_key
from facet.chat.quoted_text import QUOTE_SYMBOLS, QuotedText, as_text

_CLOSERS = frozenset(CLOSER_OF.values())
_SEPARATORS = frozenset(",;")
_ASSIGNS = frozenset(":=")


@dataclass(slots=True)
class _Frame:
    """An open bracket."""

    closer: str  # what closes it in the call
    json_closer: str  # what closes it in JSON; empty for braces inside braces
    is_object: bool
    has_items: bool = False


class ArgumentsReader:
    """One call's arguments, from the opening bracket on. Each state is a method that takes one symbol."""

    def __init__(self, opener: str) -> None:
        self.is_closed = False
        self.has_pairs = False  # once there is one, this is certainly an object
        self.unread: list[str] = []
        self._json: list[str] = []
        self._frames: list[_Frame] = []
        self._text = ""  # of the bare key being read
        self._quoted_json = ""  # of the quoted key being read, as it stands inside a JSON string
        self._gap = ""  # white space after a quote that may or may not have been the last
        self._bare = BareValue()
        self._string = QuotedText(QUOTE)
        self._state: Callable[[str], None] = self._value
        self._open(opener)

    def take(self, symbol: str) -> None:
        """The next character, or QUOTE. Nothing may follow once the reader is closed."""
        self._state(symbol)

    def take_text(self, text: str) -> str:
        """Takes characters without a special meaning all at once; returns the rest."""
        if self._state == self._in_string and self._string.quote == QUOTE:
            self._json.append(self._string.take_raw(text))
            return ""
        return text

    @property
    def is_in_string(self) -> bool:
        """Whether a string is open, and not one that has swallowed the brackets after a forgotten quote."""
        if self._state != self._in_string:
            return False
        return not self._string.ends_in([frame.closer for frame in reversed(self._frames)])

    def take_json(self) -> str:
        """The JSON that became certain since the last call."""
        json_text = "".join(self._json)
        self._json.clear()
        return json_text

    def end(self) -> None:
        """The call ended here: whatever is open is closed."""
        if self._state in (self._bare_key, self._quoted_key, self._after_key):
            self._put_key_aside()
        elif self._state == self._value and self._frames[-1].is_object:
            self._json.append("null")
        elif self._state == self._in_string:
            # A string that was never closed has swallowed the brackets after it.
            self._json.append(self._string.finish(closers=[frame.closer for frame in reversed(self._frames)]) + '"')
        elif self._state == self._after_quote:
            self._json.append('"')
        elif self._state == self._after_quote_word:
            self._json.append(escape(as_text(self._string.quote) + self._gap + self._text) + '"')
        elif self._state == self._in_bare:
            self._json.append(self._bare.json())
        elif self._state == self._after_bare_quote:
            self._json.append(self._bare.string_json())
        self._close_down_to(0)

    def cut(self) -> None:
        """The reply was cut off here: what is certain is written, and nothing is closed."""
        if self._state in (self._bare_key, self._quoted_key, self._after_key):
            self._cut_key(self._key_json())
        elif self._state == self._in_string:
            self._json.append(self._string.finish(closers=[]))
        elif self._state == self._after_quote:
            self._json.append('"')
        elif self._state == self._after_quote_word:
            self._json.append('"')
            self._cut_key(_bare_key_json(self._text))
        elif self._state == self._in_bare:
            value_json, key_json = self._bare.cut()
            self._json.append(value_json)
            if key_json:
                self._cut_key(key_json)
        elif self._state == self._after_bare_quote:
            self._json.append(self._bare.string_json())

    def _cut_key(self, key_json: str) -> None:
        self._separate()
        self._json.append('"' + key_json)

    # Keys

    def _key(self, symbol: str) -> None:
        if symbol.isspace() or symbol in _SEPARATORS:
            return
        if symbol in _CLOSERS:
            self._close(symbol)
        elif symbol == "{":
            self._frames.append(_Frame("}", "", is_object=True, has_items=self._frames[-1].has_items))
        elif symbol in QUOTE_SYMBOLS:
            self._quoted_json, self._string = "", QuotedText(symbol)
            self._state = self._quoted_key
        else:
            self._text, self._state = symbol, self._bare_key

    def _bare_key(self, symbol: str) -> None:
        if not self._ends_key(symbol):
            self._text += as_text(symbol)

    def _quoted_key(self, symbol: str) -> None:
        if self._string.closes_with(symbol):
            self._quoted_json += self._string.finish(closers=[])
            self._gap, self._state = "", self._after_key
        else:
            self._quoted_json += self._string.take(symbol)

    def _after_key(self, symbol: str) -> None:
        if symbol.isspace():
            self._gap += symbol
        elif not self._ends_key(symbol):
            quote = as_text(self._string.quote)
            self._text = quote + _decoded(self._quoted_json) + quote + self._gap + as_text(symbol)
            self._state = self._bare_key

    def _ends_key(self, symbol: str) -> bool:
        if symbol in _ASSIGNS:
            self._accept_key(self._key_json())
        elif symbol in _SEPARATORS or symbol in _CLOSERS:
            self._put_key_aside()
            self._key(symbol)
        elif symbol in ("{", "["):  # a forgotten colon
            self._accept_key(self._key_json())
            self._value(symbol)
        else:
            return False
        return True

    def _key_json(self) -> str:
        return _bare_key_json(self._text) if self._state == self._bare_key else self._quoted_json

    def _accept_key(self, key_json: str) -> None:
        self._separate()
        self._json.append(f'"{key_json}":')
        self.has_pairs = True
        self._state = self._value

    def _put_key_aside(self) -> None:
        is_bare = self._state == self._bare_key
        self.unread.append(self._text.strip() if is_bare else _decoded(self._quoted_json))
        self._state = self._key

    # Values

    def _value(self, symbol: str) -> None:
        if symbol.isspace():
            return
        is_object = self._frames[-1].is_object
        if symbol in _SEPARATORS or self._has_open(symbol):
            if is_object:
                self._json.append("null")
            self._after_value(symbol)
            return
        if not is_object:
            self._separate()
        if symbol in ("{", "["):
            self._open(symbol)
        elif symbol in QUOTE_SYMBOLS:
            self._json.append('"')
            self._string, self._state = QuotedText(symbol), self._in_string
        else:
            self._bare, self._state = BareValue(), self._in_bare
            self._in_bare(symbol)

    def _in_string(self, symbol: str) -> None:
        if self._string.closes_with(symbol):
            self._json.append(self._string.finish(closers=[]))
            self._gap, self._state = "", self._after_quote
        else:
            self._json.append(self._string.take(symbol))

    def _after_quote(self, symbol: str) -> None:
        """What follows the quote decides whether it closed the string."""
        is_object, is_delimited = self._frames[-1].is_object, self._string.quote == QUOTE
        if symbol.isspace():
            self._gap += symbol
        elif symbol in _SEPARATORS or symbol in _CLOSERS or (symbol == QUOTE and not is_delimited):
            self._json.append('"')
            self._after_value(symbol)
        elif symbol in QUOTE_SYMBOLS and not is_object:  # a forgotten comma
            self._json.append('"')
            self._value(symbol)
        elif is_object and is_delimited and is_plain_key(symbol):
            self._text, self._state = symbol, self._after_quote_word
        else:
            self._continue_string(symbol)

    def _after_quote_word(self, symbol: str) -> None:
        """A word after a string: the next key, if a colon follows, or else still the string."""
        if symbol in _ASSIGNS:
            self._json.append('"')
            self._accept_key(_bare_key_json(self._text))
        elif is_plain_key(self._text + symbol):
            self._text += symbol
        else:
            self._gap += self._text
            self._continue_string(symbol)

    def _continue_string(self, symbol: str) -> None:
        self._json.append(escape(as_text(self._string.quote) + self._gap))
        self._state = self._in_string
        self._in_string(symbol)

    def _in_bare(self, symbol: str) -> None:
        bare = self._bare
        if symbol in _CLOSERS:
            if bare.take_closer(symbol):
                return
            if self._has_open(symbol):
                self._json.append(bare.json())
                self._after_value(symbol)
            else:
                bare.add(symbol)
        elif symbol == "," and not bare.is_in_brackets:
            if self._frames[-1].is_object:
                bare.add_comma()
            else:
                self._json.append(bare.json())
                self._after_value(symbol)
        elif symbol in _ASSIGNS and bare.begins_pair():
            self._json.append(bare.json(is_before_comma=True))
            self._accept_key(_bare_key_json(bare.after_comma))
        elif bare.ends_in_comma and (symbol in QUOTE_SYMBOLS or symbol == "{"):
            self._json.append(bare.json())
            self._key(symbol)
        elif symbol == QUOTE and not bare.is_in_quotes:  # the string's opening was forgotten
            self._gap, self._state = "", self._after_bare_quote
        else:
            bare.add(as_text(symbol))

    def _after_bare_quote(self, symbol: str) -> None:
        if symbol.isspace():
            self._gap += symbol
        elif symbol in _SEPARATORS or symbol in _CLOSERS:
            self._json.append(self._bare.string_json())
            self._after_value(symbol)
        else:
            self._bare.add(as_text(QUOTE) + self._gap)
            self._state = self._in_bare
            self._in_bare(symbol)

    def _after_value(self, symbol: str) -> None:
        self._state = self._after_value
        if symbol.isspace() or symbol == QUOTE:  # of a string whose opening was forgotten
            return
        if symbol in _CLOSERS:
            self._close(symbol)
            return
        self._state = self._key if self._frames[-1].is_object else self._value
        if symbol not in _SEPARATORS:
            self._state(symbol)

    # Brackets

    def _open(self, opener: str) -> None:
        is_object = opener != "["
        self._json.append("{" if is_object else "[")
        self._frames.append(_Frame(CLOSER_OF[opener], "}" if is_object else "]", is_object))
        self._state = self._key if is_object else self._value

    def _has_open(self, closer: str) -> bool:
        return closer in _CLOSERS and any(frame.closer == closer for frame in self._frames)

    def _close(self, closer: str) -> None:
        depth = next((i for i in reversed(range(len(self._frames))) if self._frames[i].closer == closer), None)
        if depth is not None:  # else a surplus bracket, which means nothing
            self._close_down_to(depth)

    def _close_down_to(self, depth: int) -> None:
        while len(self._frames) > depth:
            frame = self._frames.pop()
            self._json.append(frame.json_closer)
            if not frame.json_closer and self._frames:
                self._frames[-1].has_items |= frame.has_items
        self.is_closed = not self._frames
        self._state = self._after_value

    def _separate(self) -> None:
        frame = self._frames[-1]
        if frame.has_items:
            self._json.append(",")
        frame.has_items = True


def _bare_key_json(text: str) -> str:
    return escape(text.strip().strip("\"'`"))


def _decoded(quoted_json: str) -> str:
    """The text of a JSON string's inside; half a surrogate pair, which no text can hold, becomes "?"."""
    text: str = json.loads(f'"{quoted_json}"')
    return text.encode("utf-8", "replace").decode("utf-8")
