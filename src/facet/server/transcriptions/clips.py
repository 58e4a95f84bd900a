"""Reads the answers about the clips of a sound: the words alone, in order, joined."""

import re
import unicodedata
from typing import Protocol

from facet.chat.deltas import ContentDelta
from facet.engine.messages import NewTokens
from facet.prompts import ReplyReader


class WordReader(Protocol):
    """Takes an answer part by part, and returns what became certain of its words."""

    def push(self, text: str) -> str: ...

    def finish(self) -> str: ...


class PlainWords:
    """All of an answer, but for white space around it."""

    def __init__(self) -> None:
        self._held = ""  # white space that may be the last
        self._has_begun = False

    def push(self, text: str) -> str:
        text = self._held + text if self._has_begun else text.lstrip()
        certain = text.rstrip()
        self._held = text[len(certain) :]
        self._has_begun = self._has_begun or bool(certain)
        return certain

    def finish(self) -> str:
        return ""


class MarkedWords:
    """What stands behind a mark at the beginning of a line; all of an answer that has none."""

    def __init__(self, mark: str) -> None:
        self._mark = re.compile(rf"^[ \t]*{re.escape(mark)}", re.MULTILINE)
        self._before: str | None = ""
        self._words = PlainWords()

    def push(self, text: str) -> str:
        if self._before is None:
            return self._words.push(text)
        last_line = self._before.rfind("\n") + 1
        self._before += text
        found = self._mark.search(self._before, last_line)
        if found is None:
            return ""
        rest, self._before = self._before[found.end() :], None
        return self._words.push(rest)

    def finish(self) -> str:
        return "" if self._before is None else self._words.push(self._before)


class ClipAnswer:
    """The answer about one clip, fed with tokens."""

    def __init__(self, reader: ReplyReader, words: WordReader, end: float) -> None:
        """`end`: of the clip, in seconds from the beginning of the sound."""
        self.tokens = reader.tokens
        self.end = end
        self._reader, self._words = reader, words
        self._parts: list[str] = []
        self._num_taken = 0

    def feed(self, new: NewTokens) -> None:
        said = "".join(delta.text for delta in self._reader.feed(new) if isinstance(delta, ContentDelta))
        self._parts.append(self._words.push(said))
        if self.tokens.finish_reason is not None:
            self._parts.append(self._words.finish())

    def take(self) -> str:
        """The words that have come since the last time."""
        parts = self._parts[self._num_taken :]
        self._num_taken = len(self._parts)
        return "".join(parts)


class JoinedWords:
    """The words of all clips, in their order."""

    def __init__(self) -> None:
        self.text = ""
        self._is_seam = False

    def add(self, words: str) -> str:
        """The words with what separates them from those of another clip."""
        if words and self._is_seam:
            words = _space_between(self.text, words) + words
            self._is_seam = False
        self.text += words
        return words

    def end_clip(self) -> None:
        self._is_seam = True


def _space_between(left: str, right: str) -> str:
    return "" if not left or any(map(_stands_without_spaces, (left[-1], right[0]))) else " "


def _stands_without_spaces(character: str) -> bool:
    """Whether a character stands without spaces, as those of Chinese and Japanese do. Hangul is as wide, but Korean has
    spaces."""
    return unicodedata.east_asian_width(character) in "WF" and not unicodedata.name(character, "").startswith("HANGUL")
