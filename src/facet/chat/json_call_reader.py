"""Finds calls that are written as JSON in the text of a reply, and leaves all other text as it is.

    {"name": "get_weather", "parameters": {"city": "Paris"}}      or a list of such objects

A call is JSON of this form, the name first and that of a tool on offer, and nothing beside the two. It begins a line,
and may stand in a code block of no language, of json, tool_code or tool_call; the block's fences are dropped with it.
`arguments` for `parameters` is understood. All other JSON and all other blocks are text.

Text is held back only while it may be a call, and then up to its last bracket: a call is handed out as a whole.

Knows neither tokens nor call ids (json_reply.py).
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

_SPACE = " \t\r\n"  # JSON's
_FENCE = "```"
_LANGUAGES = "(?:json|tool_code|tool_calls?)?"
_GAP = rf"[{_SPACE}]{{0,64}}"  # held back, and so bounded
_OPENING = re.compile(rf"(?P<fence>{_FENCE}{_LANGUAGES}{_GAP})?(?=[\[{{])")
_MAY_OPEN = re.compile(rf"`{{1,2}}|{_FENCE}\w{{0,10}}|{_FENCE}{_LANGUAGES}{_GAP}")
# What a call begins with, white space aside, and within how many characters.
_BEGINNINGS = ('{"name":', '[{"name":')
_MAX_BEGINNING = 64
_ARGUMENTS = ("parameters", "arguments")
_SYMBOL = re.compile(r'["\\\[\]{}]')
_CLOSER_OF = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class JsonCall:
    name: str
    arguments: str  # the text of a JSON object, without white space


Found = JsonCall | str


class JsonCallReader:
    """The reading state of one reply. Each state is a method that says whether it got any further."""

    def __init__(self, names: Collection[str], *, must_come_first: bool = False) -> None:
        """`names` of tools that may be called. `must_come_first`: once there is text, no call follows."""
        self._names = frozenset(names)
        self._must_come_first = must_come_first
        self._found: list[Found] = []
        self._text = ""  # not yet read
        # Before the first word, or after a call, to which it belongs. None: there are words, and it is part of them.
        self._space: str | None = ""
        self._has_text = self._follows_call = False
        self._block: Literal["calls", "other"] | None = None  # the code block around
        self._json = _JsonEnd(0)
        self._is_likely = False
        self._state: Callable[[], bool] = self._at_line_start

    def take(self, text: str) -> list[Found]:
        """What became certain with this text."""
        self._text += text
        while self._text and self._state():
            pass
        return self._take_found()

    def end(self, *, is_complete: bool) -> list[Found]:
        """No text follows. Of a call that lacks its last brackets they are added, if the reply is complete."""
        is_open_call = self._state == self._in_json and is_complete and not self._json.is_in_string
        calls = self._calls_in(self._text[self._json.start :] + self._json.missing) if is_open_call else None
        if calls is not None:
            self._found += calls
        elif self._block == "calls" and self._follows_call and _FENCE.startswith(self._text):
            pass  # half a fence behind a call
        else:
            self._say(self._text)
            if not self._has_text and not self._follows_call and self._space:
                self._found.append(self._space)
        self._text = ""
        return self._take_found()

    def _at_line_start(self) -> bool:
        text = self._text.lstrip(_SPACE)
        space = self._text[: len(self._text) - len(text)]
        self._text = text
        if self._space is None:
            self._say(space)
        else:
            self._space += space
        if not text:
            return False
        if self._follows_call and text[0] in ",;":
            self._text = text[1:]
            return True
        if self._block is not None and _FENCE.startswith(text[: len(_FENCE)]):
            return len(text) >= len(_FENCE) and self._close_block()
        if self._block != "other" and not (self._has_text and self._must_come_first):
            opening = _OPENING.match(text)
            if opening is not None:
                self._block = "calls" if opening["fence"] else self._block
                self._json, self._is_likely = _JsonEnd(opening.end()), False
                self._state = self._in_json
                return True
            if _MAY_OPEN.fullmatch(text):
                return False
        if self._block is not None or text.startswith(_FENCE):
            self._block = "other"
        self._state = self._in_line
        return True

    def _close_block(self) -> bool:
        if self._block == "calls":
            self._text = self._text[len(_FENCE) :]
        else:
            self._state = self._in_line
        self._block = None
        return True

    def _in_line(self) -> bool:
        line, newline, rest = self._text.partition("\n")
        self._say(line + newline)
        self._text = rest
        if newline:
            self._state = self._at_line_start
        return bool(newline)

    def _in_json(self) -> bool:
        if not self._is_likely:
            beginning = "".join(self._text[self._json.start : self._json.start + _MAX_BEGINNING].split())
            self._is_likely = beginning.startswith(_BEGINNINGS)
            is_short = len(self._text) - self._json.start < _MAX_BEGINNING
            if not self._is_likely and not (is_short and any(known.startswith(beginning) for known in _BEGINNINGS)):
                return self._give_back(self._json.start + 1)
        end = self._json.find(self._text)
        if end is None:
            return False
        calls = self._calls_in(self._text[self._json.start : end])
        if calls is None:
            return self._give_back(end)
        self._found += calls
        self._text, self._space, self._follows_call = self._text[end:], "", True
        self._state = self._at_line_start
        return True

    def _give_back(self, end: int) -> bool:
        """Gives back as text what turned out to be no call, up to here."""
        self._say(self._text[:end])
        self._text = self._text[end:]
        self._block = None if self._block is None else "other"
        self._state = self._in_line
        return True

    def _calls_in(self, text: str) -> list[JsonCall] | None:
        try:
            value = json.loads(text, strict=False, parse_constant=_refuse_constant)
            items = value if isinstance(value, list) else [value]
            calls = [self._call(item) for item in items]
        except (ValueError, RecursionError):
            return None
        return [call for call in calls if call is not None] if calls and None not in calls else None

    def _call(self, item: Any) -> JsonCall | None:
        if not isinstance(item, dict) or len(item) != 2:
            return None
        name = item.get("name")
        if not isinstance(name, str) or name not in self._names:
            return None
        arguments = next((item[field] for field in _ARGUMENTS if field in item), None)
        return JsonCall(name, _compact(arguments)) if isinstance(arguments, dict) else None

    def _say(self, text: str) -> None:
        if text:
            self._found.append(text if self._follows_call else (self._space or "") + text)
            self._space, self._has_text, self._follows_call = None, True, False

    def _take_found(self) -> list[Found]:
        found, self._found = self._found, []
        return found


class _JsonEnd:
    """Searches for the end of one JSON value, from its first bracket on, in a text that grows."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.is_in_string = False
        self._position = start
        self._closers: list[str] = []

    @property
    def missing(self) -> str:
        """The brackets that would end the JSON."""
        return "".join(reversed(self._closers))

    def find(self, text: str) -> int | None:
        """The place behind it. Brackets that do not match end it, too: that is no JSON."""
        while (symbol := _SYMBOL.search(text, self._position)) is not None:
            sign = symbol[0]
            if sign == "\\" and symbol.end() == len(text):
                self._position = symbol.start()  # what it escapes is still to come
                return None
            self._position = symbol.end() + (sign == "\\")
            if sign == '"':
                self.is_in_string = not self.is_in_string
            elif sign != "\\" and not self.is_in_string:
                if sign in _CLOSER_OF:
                    self._closers.append(_CLOSER_OF[sign])
                elif self._closers.pop() != sign or not self._closers:
                    return self._position
        self._position = len(text)
        return None


def _compact(arguments: dict[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell and no text can hold
        return json.dumps(arguments, separators=(",", ":"))
    return text


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
