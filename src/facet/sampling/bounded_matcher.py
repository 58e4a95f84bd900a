"""Follows a grammar in which texts may have at most so many characters.

Asked for the tokens that keep within a bound, the library tries each of them: 100 ms for 262,144 when the bound is
closer than the longest token. Here a second matcher follows the same grammar without bounds, whose sets of tokens are
kept ready, and the one that counts is asked about few (`token_lengths.py`): of tokens that neither begin nor end a
text, those with equally many characters keep within a bound alike, so that one of each length is tried, as few lengths
as it takes.
"""

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from facet.sampling.token_lengths import Bits, TokenLengths

if TYPE_CHECKING:
    import xgrammar


# At the beginning of a rule, in either notation of the library.
_BOUND = re.compile(r"^(\w+)\[max_chars=(\d+)\](?=:| ::=)", re.MULTILINE)


def without_bounds(grammar: str, found: list[int]) -> str:
    """The same grammar with texts of any length. Adds the bounds that were there to `found`."""
    found += (int(bound) for _, bound in _BOUND.findall(grammar))
    return _BOUND.sub(r"\1", grammar)


class Bounds(NamedTuple):
    """What a matcher needs besides two grammars."""

    lengths: TokenLengths
    smallest: int  # of the grammar's bounds


class BoundedMatcher:
    """Two matchers at the same place, with the methods of one. `counting` has the bounds."""

    def __init__(self, free: "xgrammar.GrammarMatcher", counting: "xgrammar.GrammarMatcher", bounds: Bounds) -> None:
        self._free, self._counting, self._bounds = free, counting, bounds

    def accept_token(self, token_id: int) -> bool:
        if not self._counting.accept_token(token_id):
            return False
        was_accepted: bool = self._free.accept_token(token_id)
        assert was_accepted, "what keeps within bounds is allowed without them"
        return True

    def is_terminated(self) -> bool:
        return bool(self._counting.is_terminated())

    def fork(self) -> "BoundedMatcher":
        return BoundedMatcher(self._free.fork(), self._counting.fork(), self._bounds)

    def fill_next_token_bitmask(self, mask: NDArray[np.int32]) -> None:
        self._free.fill_next_token_bitmask(mask)
        allowed, lengths = mask[0].view(np.uint32), self._bounds.lengths
        entering, most = lengths.entering(self._bounds.smallest), self._most_characters(allowed)
        if most is None:
            forbidden, to_try = entering.forbidden, entering.to_try | lengths.parts  # of a character that has begun
        else:
            above = lengths.above(most)
            forbidden, to_try = entering.forbidden | above.forbidden, entering.to_try | above.to_try
        allowed &= ~forbidden
        for alike in lengths.groups(allowed & to_try):
            if not self._keeps_within(alike[0]):
                np.bitwise_and.at(allowed, alike >> 5, ~(np.uint32(1) << (alike & 31).astype(np.uint32)))

    def _most_characters(self, allowed: Bits) -> int | None:
        """The most characters that any plain token among these has which keeps within the bound. None: there are no
        plain tokens."""
        found = self._bounds.lengths.plain_of_each(allowed)
        first = next(found, None)
        if first is None:
            return None
        length, token_id = first
        if self._keeps_within(token_id):
            return length
        others = list(found)
        low, high = 0, len(others)  # the first `low` of them, which are the longest, do not; that at `high` does
        while low < high:
            middle = (low + high) // 2
            if self._keeps_within(others[middle][1]):
                high = middle
            else:
                low = middle + 1
        return others[low][0] if low < len(others) else 0

    def _keeps_within(self, token_id: int) -> bool:
        if not self._counting.accept_token(int(token_id)):
            return False
        self._counting.rollback(1)
        return True
