"""Breaks text between words as it arrives in parts, at the width of a terminal."""

import re

from rich.cells import cell_len

_PARTS = re.compile(r"\n|[^\S\n]+|\S+")
_FENCE = "```"


class WordWrap:
    """Holds back the word that may not be complete yet. Code between fences is left as it is."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._word = ""
        self._is_code = False

    def feed(self, text: str) -> str:
        """What can be shown now."""
        return "".join(map(self._take, _PARTS.findall(text)))

    def end(self) -> str:
        """The last word."""
        word, self._word = self._word, ""
        if not word:
            return ""
        if word.startswith(_FENCE) and self._column == 0:
            self._is_code = not self._is_code
        length = cell_len(word)
        is_broken = self._column > 0 and self._column + length > self._width and not self._is_code
        self._column = length if is_broken else self._column + length
        return f"\n{word}" if is_broken else word

    def _take(self, part: str) -> str:
        if not part.isspace():
            self._word += part
            # A word wider than a line, or a text without blanks, is shown as it comes.
            return self.end() if cell_len(self._word) > self._width // 2 else ""
        shown = self.end()
        if part == "\n":
            self._column = 0
            return shown + part
        self._column += cell_len(part)
        # A blank at the end of a line gives way to the break that follows.
        return shown + part if self._column < self._width or self._is_code else shown
