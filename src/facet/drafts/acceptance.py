"""Learns how often guesses are right: the longer the match behind a guess, the likelier it is.

Matches are put into classes by length, each twice as wide as the one before. A class knows how many tokens were tried
lately and how many of them were right; a request has classes of its own, which begin as the engine's and soon say how
well this very text repeats itself. What is no longer tried slowly becomes as likely again as it was at first, so that
nothing is given up for ever.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from facet.drafts.guess import Guess
from facet.step import StepPlan, StepResult

# Shares of right tokens by class of match length (1, 2 to 3, 4 to 7, ...), before anything is known.
_OF_TEXT_AT_FIRST = (0.4, 0.55, 0.7, 0.8, 0.85, 0.9, 0.9, 0.9)
_WEIGHT_AT_FIRST = 4.0  # tokens that this counts as
_MEMORY = 0.97  # of what was tried, for every token more
_MEMORY_OF_A_REQUEST = 0.9
_MEMORY_UNTRIED = 0.999  # for every guess that was not tried


class Acceptance:
    def __init__(self, at_first: Sequence[float] = _OF_TEXT_AT_FIRST) -> None:
        self._at_first = at_first
        self._engine = _Classes(_MEMORY, len(at_first))
        self._requests: dict[int, _Classes] = {}  # by request number

    def chances(self, request_number: int | None, guess: Guess) -> list[float]:
        """How likely each token of a guess is right, and all before it. The chances never rise.

        `request_number` None: for any request.
        """
        own = None if request_number is None else self._requests.get(request_number)
        chances, chance, first = list[float](), 1.0, 0
        for index, count in self._classes(guess.match_length, len(guess.shares)):
            expected = self._engine.share(index, self._at_first[index])
            if own is not None:
                expected = own.share(index, expected)
            for share in guess.shares[first : first + count]:
                chance *= expected
                chances.append(chance * share)
            first += count
        return chances

    def learn(self, request_number: int, match_length: int, num_drafts: int, num_right: int) -> None:
        """Learns that so many tokens of a guess behind such a match were tried, and how many were right before one was
        not."""
        own = self._requests.get(request_number)
        if own is None:
            own = self._requests[request_number] = _Classes(_MEMORY_OF_A_REQUEST, len(self._at_first))
        for index, count in self._classes(match_length, num_right):
            self._engine.count_right(index, count)
            own.count_right(index, count)
        if num_right < num_drafts:
            index = self._class_of(match_length + num_right)
            self._engine.count_wrong(index)
            own.count_wrong(index)

    def forgo(self, match_length: int) -> None:
        """Takes note that a guess was not tried."""
        self._engine.fade(self._class_of(match_length), _MEMORY_UNTRIED)

    def keep_only(self, request_numbers: Iterable[int]) -> None:
        self._requests = {number: self._requests[number] for number in request_numbers if number in self._requests}

    def _class_of(self, match_length: int) -> int:
        return min(match_length.bit_length(), len(self._at_first)) - 1

    def _classes(self, match_length: int, num_tokens: int) -> Iterator[tuple[int, int]]:
        """The classes of tokens behind matches, each longer by one, and how many tokens belong to each."""
        while num_tokens:
            index, count = self._class_of(match_length), num_tokens
            if index + 1 < len(self._at_first):
                count = min(count, (2 << index) - match_length)
            yield index, count
            match_length += count
            num_tokens -= count


class Outcome(NamedTuple):
    """What became of the drafts of one request in a step."""

    request_number: int
    num_drafts: int
    num_right: int


def outcomes(plan: StepPlan, result: StepResult) -> list[Outcome]:
    """The outcome of each request that had drafts in a settled step, and got tokens."""
    if not plan.has_drafts:
        return []
    entries = zip(
        plan.request_numbers[plan.samples].tolist(),
        plan.num_drafts[plan.samples].tolist(),
        result.token_ids,
        strict=True,
    )
    return [Outcome(number, count, len(token_ids) - 1) for number, count, token_ids in entries if count and token_ids]


class _Classes:
    def __init__(self, memory: float, count: int) -> None:
        self._memory = memory
        self._tried = [0.0] * count
        self._right = [0.0] * count

    def share(self, index: int, at_first: float) -> float:
        return (_WEIGHT_AT_FIRST * at_first + self._right[index]) / (_WEIGHT_AT_FIRST + self._tried[index])

    def count_right(self, index: int, count: int) -> None:
        memory = self._memory**count
        all_of_them = (1.0 - memory) / (1.0 - self._memory)  # the earlier, the less
        self._tried[index] = memory * self._tried[index] + all_of_them
        self._right[index] = memory * self._right[index] + all_of_them

    def count_wrong(self, index: int) -> None:
        self.fade(index, self._memory)
        self._tried[index] += 1.0

    def fade(self, index: int, memory: float) -> None:
        self._tried[index] *= memory
        self._right[index] *= memory
