"""Defines the parts of a parsed reply, and the interface of everything that parses replies.

These are the values that this room returns. They know no tokens, no JSON and no event stream.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the thought."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of what the reply says, thoughts and calls aside."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins; its arguments follow under the same index."""

    index: int  # calls count from 0 in the order they were written
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments. The fragments of one index, put together, are one JSON object, or its beginning."""

    index: int
    fragment: str


Delta = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments


class ReplyParser(Protocol):
    """Reads the tokens of one reply. Each reply has its own; nothing is shared between them."""

    def push(self, token_id: int) -> list[Delta]:
        """Takes the next token and returns what became certain with it. After a stop string: nothing more."""
        ...

    def finish(self, *, is_complete: bool = False) -> list[Delta]:
        """The reply has ended: returns everything that was held back.

        `is_complete` says that the model ended it (an end token that was not pushed). Then a call whose
        closing was forgotten is closed, unless it ends inside a string. Otherwise it was cut off, and the arguments
        stay as far as they came.
        """
        ...

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the content or the thought, if one did. The reply is over then."""
        ...
