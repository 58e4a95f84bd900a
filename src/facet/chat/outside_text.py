"""Text from outside as a template sees it: a string that compares as it was sent but consists of marked characters.

What a client sends (a message, a tool's description, a result) must never become a control token, whatever the
template does with it: trim it, split it, cut it, put it next to other text. So every visible character of such text
is *shifted* into a range of code points that Unicode has not assigned (planes 4 to 7), one for one, before the
template runs. After rendering, a shifted character is known to have come from outside, and every other one to have
been written by the template.

A template must not notice. `OutsideText` is a `str` whose own characters are the shifted ones, and which answers every
question (`==`, `in`, `startswith`, `<`, `hash`, ...) as the text that was sent. What it hands out are always shifted
characters: parts of itself, or, where a method computes new text (`zfill`), that text shifted as a whole. Code that
knows nothing of it, such as `"".join`, copies the shifted characters. So no operation turns text from outside into
unshifted text, and one that was forgotten here can only misread it, never make it look like the template's.

White space is not shifted: no control token is made of it, and trimming works for strings of every kind.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, SupportsIndex

_SHIFT = 0x40000
_SHIFTED = re.compile(r"[\U00040000-\U0007ffff]")
_RUN = re.compile(r"[\U00040000-\U0007ffff]+|[^\U00040000-\U0007ffff]+")
_REPLACEMENT = 0xFFFD


class _Up(dict[int, int]):
    def __missing__(self, code: int) -> int:
        if code >= _SHIFT:
            # Nothing is assigned in the planes that stand for others. Beyond them nothing need be shifted.
            return _REPLACEMENT + _SHIFT if code < 2 * _SHIFT else code
        self[code] = code if chr(code).isspace() else code + _SHIFT
        return self[code]


class _Down(dict[int, int]):
    def __missing__(self, code: int) -> int:
        if not _SHIFT <= code < 2 * _SHIFT:
            return code
        self[code] = code - _SHIFT
        return self[code]


_UP, _DOWN = _Up(), _Down()


def shifted(text: str) -> str:
    """The text with every visible character shifted."""
    return str.translate(text, _UP)


def unshifted(text: str) -> str:
    """The text with shifted characters as they were."""
    return str.translate(text, _DOWN)  # also of an OutsideText, which would answer otherwise


def without_shifted(text: str) -> str:
    """The text with a NUL in place of every shifted character."""
    return _SHIFTED.sub("\0", text)


def traced(text: str) -> str:
    """A string some code has made, as `OutsideText` if there are shifted characters in it."""
    return OutsideText(text) if _SHIFTED.search(text) else text


def from_outside(value: Any) -> Any:
    """A copy of a JSON-like value in which every string, keys included, is text from outside."""
    if isinstance(value, str):
        return traced(shifted(value))
    if isinstance(value, Mapping):
        return {from_outside(key): from_outside(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(map(from_outside, value))
    return value


def as_sent(value: Any) -> Any:
    """The same value with plain strings in place of text from outside: to look at, not to hand to a template."""
    if isinstance(value, OutsideText):
        return value._as_sent
    if isinstance(value, str):
        return unshifted(value)
    if isinstance(value, Mapping):
        return {as_sent(key): as_sent(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(map(as_sent, value))
    return value


def has_outside_text(value: Any) -> bool:
    """Whether any string in a JSON-like value holds shifted characters."""
    if isinstance(value, str):
        return _SHIFTED.search(value) is not None
    if isinstance(value, Mapping):
        return any(has_outside_text(key) or has_outside_text(item) for key, item in value.items())
    return isinstance(value, list | tuple | set | frozenset) and any(map(has_outside_text, value))


class OutsideText(str):
    """A string with shifted characters, and possibly some of the template's own among them.

    `encode`, `format`, `__format__` and `__repr__` are those of `str` on purpose: they show shifted characters.
    """

    __slots__ = ("_text",)

    _text: str

    @property
    def _as_sent(self) -> str:
        # Jinja's sandbox keeps names with an underscore from templates.
        try:
            return self._text
        except AttributeError:
            self._text = unshifted(self)
            return self._text

    def __str__(self) -> str:
        return self

    def __hash__(self) -> int:
        return hash(self._as_sent)

    def __iter__(self) -> Iterator[str]:
        return map(traced, super().__iter__())

    def __getitem__(self, index: SupportsIndex | slice) -> str:
        return traced(super().__getitem__(index))

    def __add__(self, other: str) -> str:
        return OutsideText(super().__add__(other))

    def __radd__(self, other: str) -> str:
        return OutsideText("".join((other, self))) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> str:
        return traced(super().__mul__(times))

    __rmul__ = __mul__

    def strip(self, chars: str | None = None, /) -> str:
        kept = self.lstrip(chars)
        return kept.rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        return self[len(self) - len(self._as_sent.lstrip(as_sent(chars))) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        return self[: len(self._as_sent.rstrip(as_sent(chars)))]

    def removeprefix(self, prefix: str, /) -> str:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> str:
        return self[: len(self) - len(suffix)] if self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(self._as_sent.split(as_sent(sep), maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(self._as_sent.rsplit(as_sent(sep), maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self._parts(self._as_sent.splitlines(keepends=True), "")
        return lines if keepends else [line[: len(as_sent(line).splitlines()[0])] for line in lines]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, _ = self._as_sent.partition(as_sent(sep))
        end = len(before) + len(found)
        return self[: len(before)], self[len(before) : end], self[end:]

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, _ = self._as_sent.rpartition(as_sent(sep))
        end = len(before) + len(found)
        return self[: len(before)], self[len(before) : end], self[end:]

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if old == "":
            return traced(shifted(self._as_sent.replace("", as_sent(new), count)))
        return traced("".join(_between(new, self.split(old, count))))

    def join(self, items: Iterable[str], /) -> str:
        return traced(super().join(items))

    def _parts(self, parts: list[str], sep: str | None) -> list[str]:
        """The parts of this text that read as `parts`, which lie in it in this order with `sep` between them."""
        found, start = [], 0
        for part in parts:
            if sep is None:  # white space of any length; no part but the first can begin with it
                start = self._as_sent.index(part, start)
            found.append(self[start : start + len(part)])
            start += len(part) + len(sep or "")
        return found


def _between(separator: str, items: list[str]) -> Iterator[str]:
    for index, item in enumerate(items):
        if index:
            yield separator
        yield item


def _answered_as_sent(name: str) -> Callable[..., Any]:
    """A question about the text, such as `startswith`: no character comes out of it."""
    method = getattr(str, name)

    def answer(self: OutsideText, *arguments: Any) -> Any:
        return method(self._as_sent, *map(as_sent, arguments))

    return answer


def _recased(name: str) -> Callable[..., str]:
    """A change of case: what was shifted stays so, what was the template's stays the template's."""
    method = getattr(str, name)

    def recase(self: OutsideText) -> str:
        changed = method(self._as_sent)
        places = range(len(self) + 1) if len(changed) == len(self) else _new_places(method, self._as_sent)
        runs = [(run.group(), changed[places[run.start()] : places[run.end()]]) for run in _RUN.finditer(self)]
        return traced("".join(shifted(new) if _SHIFTED.match(old) else new for old, new in runs))

    return recase


def _new_places(recase: Callable[[str], str], text: str) -> list[int]:
    """Where what each character became begins, and where the last ends: some letters become two.

    What a character becomes depends on the one before it, as in `title`; how many it becomes, on none further away.
    """
    pairs = (text[max(0, index - 1) : index + 1] for index in range(len(text)))
    return [0, *accumulate(len(recase(pair)) - len(recase(pair[:-1])) for pair in pairs)]


def _shifted_as_a_whole(name: str) -> Callable[..., str]:
    """New text computed from this one: all of it counts as from outside."""
    method = getattr(str, name)

    def compute(self: OutsideText, *arguments: Any) -> str:
        return traced(shifted(method(self._as_sent, *map(as_sent, arguments))))

    return compute


for _name in (
    *("__contains__", "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__"),
    *("count", "endswith", "find", "index", "rfind", "rindex", "startswith"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
    *("isprintable", "isspace", "istitle", "isupper"),
):
    setattr(OutsideText, _name, _answered_as_sent(_name))
for _name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper"):
    setattr(OutsideText, _name, _recased(_name))
for _name in ("__mod__", "center", "expandtabs", "ljust", "rjust", "translate", "zfill"):
    setattr(OutsideText, _name, _shifted_as_a_whole(_name))
