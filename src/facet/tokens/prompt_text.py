"""The text of a prompt, with the parts of it that may become control tokens."""

from dataclasses import dataclass
from typing import Self


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
