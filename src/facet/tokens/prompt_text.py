"""The text of a prompt, with the parts of it that may become control tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_SEARCHED_CHARACTERS = 1 << 10


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt as it was given or rendered. Only what a template itself wrote may become control tokens."""

    text: str
    # The same text with a NUL in place of each visible character from outside. None: the text may be encoded as it is,
    # because nothing from outside can be part of a control token, or because it was meant to be read like that.
    own_text: str | None = None

    @classmethod
    def from_outside(cls, text: str) -> Self:
        """A text without any control token, whatever is written in it."""
        return cls(text, own_text="\0" * len(text))

    @classmethod
    def joined(cls, parts: Iterable["PromptText"]) -> Self:
        """Several texts as one."""
        parts = list(parts)
        text = "".join(part.text for part in parts)
        if all(part.own_text is None for part in parts):
            return cls(text)
        return cls(text, "".join(part.text if part.own_text is None else part.own_text for part in parts))

    def part(self, start: int, end: int) -> "PromptText":
        return PromptText(self.text[start:end], None if self.own_text is None else self.own_text[start:end])

    def last(self, num_characters: int) -> "PromptText":
        """The end of it, from a white space on if there is one soon."""
        start = max(0, len(self.text) - num_characters)
        blank = self.text.find(" ", start, start + _SEARCHED_CHARACTERS)
        start = start if blank < 0 else blank
        return self.part(start, len(self.text))
