"""Notices when an output repeats itself without end, by a `LoopRule`. Costs next to nothing while it does not.

A *match* of a cycle of c tokens is a token that equals the one c places before it. A cycle that has filled n tokens
shows as n - c matches in a row, and the rule asks for some least number of those, `num_needed`.

A token that nothing is known about is not looked at. Every `stride` tokens there is a *look* for cycles whose last
`lead` tokens all matched; those are *watched*, token by token, until one does not match or there are enough. As
lead + stride - 1 matches are never enough, no loop gets past the looks, and each is seen at the very token that
completes it.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from facet.repetition import LoopRule


class _Search(NamedTuple):
    lead: int
    stride: int


@cache
def _search(rule: LoopRule) -> _Search:
    fewest = min(rule.num_tokens(cycle) - cycle for cycle in range(rule.min_cycle, rule.max_cycle + 1))
    lead = (fewest + 1) // 2
    return _Search(lead, fewest - lead + 1)


class LoopGuard:
    """Follows one output as it grows."""

    def __init__(self, rule: LoopRule, *, min_outputs: int = 0, phase: int = 0) -> None:
        """No loop ends an output of fewer than `min_outputs` tokens. Guards of different phases look at different
        lengths, so that requests which began together do not all look in the same step."""
        self._rule = rule
        self._min_outputs = min_outputs
        self._lead, self._stride = _search(rule)
        self._next_look = self.due = self._lead + rule.min_cycle + phase % self._stride
        self._num_matches: dict[int, int] = {}  # of watched cycles
        self.cycle = 0  # of the loop that was seen

    def sees_loop(self, outputs: Sequence[int]) -> bool:
        """Whether the outputs loop; to be asked after every token from the length `due` on."""
        num_outputs = len(outputs)
        for cycle, count in tuple(self._num_matches.items()):
            if outputs[-1] == outputs[-1 - cycle]:
                self._num_matches[cycle] = count + 1
            else:
                del self._num_matches[cycle]
        if num_outputs >= self._next_look:
            self._look(outputs)
            self._next_look = num_outputs + self._stride
        self.due = num_outputs + 1 if self._num_matches else self._next_look
        for cycle, count in self._num_matches.items():
            if count >= self._rule.num_tokens(cycle) - cycle and num_outputs >= self._min_outputs:
                self.cycle = cycle
                return True
        return False

    def _look(self, outputs: Sequence[int]) -> None:
        lead, last = self._lead, outputs[-1]
        longest = min(self._rule.max_cycle, len(outputs) - lead)
        before = outputs[-1 - longest : -1]
        if last not in before:
            return  # often so, and quickly found out
        recent = outputs[-lead:]
        for cycle, token_id in enumerate(reversed(before), 1):
            if (
                token_id == last
                and cycle >= self._rule.min_cycle
                and cycle not in self._num_matches
                and outputs[-lead - cycle : -cycle] == recent
            ):
                self._num_matches[cycle] = self._count(outputs, cycle)

    def _count(self, outputs: Sequence[int], cycle: int) -> int:
        """How many matches in a row there are by now, as far as it matters."""
        enough = min(self._rule.num_tokens(cycle), len(outputs)) - cycle
        count = self._lead
        while count < enough and outputs[-1 - count] == outputs[-1 - count - cycle]:
            count += 1
        return count
