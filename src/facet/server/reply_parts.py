"""Groups the deltas of a reply into its parts in the order in which they were written: thoughts, texts and calls."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from facet.chat.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallStart
from facet.chat.json_text import is_json


@dataclass(eq=False, slots=True)
class ReplyPart:
    index: int  # among the parts of the reply
    kind: Literal["thought", "text", "call"]
    call_id: str = ""
    name: str = ""  # of the tool
    fragments: list[str] = field(default_factory=list)
    is_open: bool = True

    @property
    def text(self) -> str:
        """The part's text as far as it has come; of a call, its arguments."""
        return "".join(self.fragments)

    @property
    def is_whole_call(self) -> bool:
        """Whether it is a call whose arguments are JSON, and not the beginning of it."""
        return self.kind == "call" and is_json(self.text)


@dataclass(frozen=True, slots=True)
class Opened:
    part: ReplyPart


@dataclass(frozen=True, slots=True)
class Grown:
    part: ReplyPart
    fragment: str


@dataclass(frozen=True, slots=True)
class Closed:
    part: ReplyPart


Change = Opened | Grown | Closed


class ReplyParts:
    """The parts of one reply as far as it has come. One of them at most is open, the last."""

    def __init__(self) -> None:
        self.parts: list[ReplyPart] = []

    def feed(self, deltas: Iterable[Delta]) -> Iterator[Change]:
        """What the deltas change, in order."""
        for delta in deltas:
            if isinstance(delta, ToolCallStart):
                yield from self.close()
                yield self._open("call", delta.call_id, delta.name)
                continue
            if isinstance(delta, ReasoningDelta | ContentDelta):
                kind: Literal["thought", "text"] = "thought" if isinstance(delta, ReasoningDelta) else "text"
                if not (self.parts and self.parts[-1].is_open and self.parts[-1].kind == kind):
                    yield from self.close()
                    yield self._open(kind)
                fragment = delta.text
            else:
                fragment = delta.fragment
            part = self.parts[-1]
            part.fragments.append(fragment)
            yield Grown(part, fragment)

    def close(self) -> Iterator[Change]:
        """Closes the open part: the reply has ended, or another part begins."""
        if self.parts and self.parts[-1].is_open:
            self.parts[-1].is_open = False
            yield Closed(self.parts[-1])

    def _open(self, kind: Literal["thought", "text", "call"], call_id: str = "", name: str = "") -> Opened:
        self.parts.append(ReplyPart(len(self.parts), kind, call_id, name))
        return Opened(self.parts[-1])
