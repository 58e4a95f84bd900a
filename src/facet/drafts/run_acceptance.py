"""Learns how often a model's drafts are right, by their place in a run, of all requests and of each.

As in `acceptance.py`: recent outcomes count most, a request begins with what is known of all, and what is not tried
becomes as likely again as it was at first. The chances of a request are worked out when it is learned from, while the
device computes, and not when they are needed.
"""

import itertools
import operator
from collections.abc import Iterable, Sequence

from facet.drafts.acceptance import Outcome

_AT_FIRST = 0.75  # about what published drafters reach, place by place
_WEIGHT_AT_FIRST = 4.0  # drafts that this counts as
_MEMORY = 0.97  # of what was tried, for every draft more
_MEMORY_OF_A_REQUEST = 0.9
_MEMORY_UNTRIED = 0.999  # for every step without drafts


class _Counts:
    """Drafts tried and right at each place, the recent ones above all."""

    __slots__ = ("right", "tried")

    def __init__(self, num_places: int) -> None:
        self.tried = [0.0] * num_places
        self.right = [0.0] * num_places

    def shares(self, at_first: Iterable[float]) -> list[float]:
        return [
            (_WEIGHT_AT_FIRST * share + right) / (_WEIGHT_AT_FIRST + tried)
            for share, right, tried in zip(at_first, self.right, self.tried, strict=True)
        ]

    def count(self, num_drafts: int, num_right: int, memory: float) -> None:
        """Counts how many drafts were tried, and how many were right before one was not."""
        tried, right = self.tried, self.right
        for place in range(num_right):
            tried[place] = memory * tried[place] + 1.0
            right[place] = memory * right[place] + 1.0
        if num_right < num_drafts:
            tried[num_right] = memory * tried[num_right] + 1.0
            right[num_right] *= memory


class RunAcceptance:
    def __init__(self, num_places: int) -> None:
        self._at_first = [_AT_FIRST] * num_places
        self._of_all = _Counts(num_places)
        self._of_request: dict[int, _Counts] = {}  # by number
        self._chances_of: dict[int, tuple[float, ...]] = {}  # the same

    def __len__(self) -> int:
        """How many requests are known by themselves."""
        return len(self._of_request)

    def chances(self) -> tuple[float, ...]:
        """How likely a draft at each place and all before it are right, of any request."""
        return _products(self._of_all.shares(self._at_first))

    def chances_of(self, request_numbers: Iterable[int]) -> list[tuple[float, ...]]:
        """The same of each of these requests."""
        known, of_any = self._chances_of, self.chances()
        return [known.get(number, of_any) for number in request_numbers]

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        for _, num_drafts, num_right in outcomes:
            self._of_all.count(num_drafts, num_right, _MEMORY)
        shares = self._of_all.shares(self._at_first)
        for number, num_drafts, num_right in outcomes:
            own = self._of_request.get(number)
            if own is None:
                own = self._of_request[number] = _Counts(len(self._at_first))
            own.count(num_drafts, num_right, _MEMORY_OF_A_REQUEST)
            self._chances_of[number] = _products(own.shares(shares))

    def forgo(self) -> None:
        """Takes note that nothing was tried in a step."""
        for counts in (self._of_all.tried, self._of_all.right):
            counts[:] = [_MEMORY_UNTRIED * count for count in counts]

    def keep_only(self, request_numbers: Iterable[int]) -> None:
        """Forgets the other requests."""
        known, chances = self._of_request, self._chances_of
        self._of_request = {number: known[number] for number in request_numbers if number in known}
        self._chances_of = {number: chances[number] for number in self._of_request}


def _products(shares: Iterable[float]) -> tuple[float, ...]:
    """The products of the first share, the first two, and so on."""
    return tuple(itertools.accumulate(shares, operator.mul))
