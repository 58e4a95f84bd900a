"""An index of a request's tokens that finds the first occurrence of the last few, as vLLM's method of that name."""

from collections.abc import Sequence

from facet.drafts.guess import NO_GUESS, Guess


class NgramIndex:
    def __init__(self, *, min_match: int, max_match: int) -> None:
        self._lengths = range(max_match, min_match - 1, -1)
        self._tokens: list[int] = []
        # By length and the last so many tokens: where these were first followed by something.
        self._first: dict[int, dict[tuple[int, ...], int]] = {length: {} for length in self._lengths}

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, token_ids: Sequence[int]) -> None:
        for place, token_id in enumerate(token_ids, len(self._tokens)):
            for length, first in self._first.items():
                if place >= length:
                    first.setdefault(tuple(self._tokens[-length:]), place)
            self._tokens.append(token_id)

    def guess(self, max_num_tokens: int) -> Guess:
        for length in self._lengths:
            place = self._first[length].get(tuple(self._tokens[-length:]))
            if place is not None:
                guess = self._tokens[place : place + max_num_tokens]
                return Guess(guess, [1.0] * len(guess), length)
        return NO_GUESS
