"""Tells the thoughts of an answer from the rest of it, by the tokens that open and close them."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtTokens:
    """A thought is what stands between two tokens. The end of a turn closes whatever is open."""

    open_id: int
    close_id: int
    turn_end_ids: tuple[int, ...] = ()
    is_open: bool = False  # the prompt already ends inside a thought

    def __post_init__(self) -> None:
        assert self.open_id != self.close_id, "one token cannot both open and close a thought"

    @property
    def end_ids(self) -> tuple[int, ...]:
        """What a thought can end with; the first is its own closing token."""
        return self.close_id, *self.turn_end_ids


class ThoughtCounter:
    """Counts the tokens of thoughts: all those between an opening token and the next that closes it."""

    def __init__(self, tokens: ThoughtTokens) -> None:
        self._open_id = tokens.open_id
        self._end_ids = frozenset(tokens.end_ids)
        self.is_open = tokens.is_open
        self.count = 0

    def push(self, token_id: int) -> None:
        if not self.is_open:
            self.is_open = token_id == self._open_id
        elif token_id in self._end_ids:
            self.is_open = False
        else:
            self.count += 1

    def push_all(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            self.push(token_id)
