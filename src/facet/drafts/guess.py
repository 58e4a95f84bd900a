"""A guess of how a text goes on, what drafters make of it, and what an index over a request's tokens must do for it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Guess(NamedTuple):
    token_ids: list[int]
    shares: list[float]  # of the places found, how many go on with all the tokens up to this one
    match_length: int  # how many tokens before the guess are those before the place it was found at


NO_GUESS = Guess([], [], 0)


class Offer(NamedTuple):
    """What a drafter has for one request: as many of the tokens as are worth their time become drafts."""

    token_ids: Sequence[int]
    chances: Sequence[float]  # of each token: how likely it and all before it are right. They never rise


class TextIndex(Protocol):
    """Finds earlier places in one request's tokens. Extending is cheap, and so is finding nothing."""

    def __len__(self) -> int:
        """How many tokens there are."""

    def extend(self, token_ids: Sequence[int]) -> None: ...

    def guess(self, max_num_tokens: int) -> Guess:
        """How the tokens could go on."""
