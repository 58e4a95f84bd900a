"""How long steps take, and how many drafts are worth their time.

A draft is one row more in a step. Up to some number of rows a step takes hardly longer for it, since it is bound by
reading weights; beyond, every row costs its share. So what drafts bring depends on how many requests run: the curve of
seconds over rows is measured at start, and corrected by what steps with and without drafts then really take.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

# A step that takes longer than so many times what was expected met something else, such as another process.
_STRANGE = 4.0
_MEMORY = 0.95
_MEMORY_UNSEEN = 0.998
# Drafts must promise so much more than none: what is expected is never exact.
_LEAST_GAIN = 1.02


class StepTimes:
    def __init__(self, measured: Mapping[int, float]) -> None:
        """Seconds of steps by rows; between two of them seconds grow evenly. Steps with more rows have no drafts."""
        rows = sorted(measured)
        # More rows never take less time: what says otherwise was disturbed.
        rising = np.maximum.accumulate([measured[count] for count in rows])
        self._seconds = np.interp(np.arange(rows[-1] + 1), rows, rising)
        self._beyond_plain = _Average()
        self._beyond_drafted = _Average()

    def learn(self, num_rows: int, seconds: float, *, has_drafts: bool) -> None:
        """A step that computed only single tokens and drafts took so long."""
        if num_rows < len(self._seconds):
            expected = float(self._seconds[num_rows])
            beyond = min(seconds, _STRANGE * expected) - expected
            if has_drafts:
                self._beyond_drafted.add(beyond)
            else:
                self._beyond_plain.add(beyond)
                self._beyond_drafted.fade()

    def could_gain(self, num_rows: int) -> bool:
        """Whether drafts that are all right would be worth it, beside so many requests."""
        num_drafts = len(self._seconds) - 1 - num_rows
        return num_drafts > 0 and self._best_count(np.ones(num_drafts), num_rows) > 0

    def worthwhile(self, chances: Sequence[Sequence[float]], num_rows: int) -> list[int]:
        """How many drafts of each request to compute, so that a second brings most tokens.

        `chances` never rise along a request's drafts, so those most likely right form a beginning of each.
        """
        owners = np.repeat(np.arange(len(chances)), [len(own) for own in chances])
        flat = np.array([chance for own in chances for chance in own])
        order = np.argsort(-flat, kind="stable")[: max(0, len(self._seconds) - 1 - num_rows)]
        best = self._best_count(flat[order], num_rows)
        counts: list[int] = np.bincount(owners[order[:best]], minlength=len(chances)).tolist()
        return counts

    def _best_count(self, chances: NDArray[np.float64], num_rows: int) -> int:
        """Of drafts in the order of their chances, how many to compute beside so many rows."""
        if not len(chances):
            return 0
        num_tokens = num_rows + np.cumsum(chances)
        seconds = self._seconds[num_rows + 1 : num_rows + 1 + len(chances)]
        plain = self._beyond_plain.value()
        drafted = self._beyond_drafted.value(at_first=plain)
        rates = num_tokens / (seconds + drafted)
        best = int(rates.argmax())
        return best + 1 if rates[best] > _LEAST_GAIN * num_rows / (self._seconds[num_rows] + plain) else 0


class _Average:
    """Of values that come one by one, the recent ones above all."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float) -> None:
        self._sum = _MEMORY * self._sum + value
        self._weight = _MEMORY * self._weight + 1.0

    def fade(self) -> None:
        """Another value did not come: those that did say less by now."""
        self._sum *= _MEMORY_UNSEEN
        self._weight *= _MEMORY_UNSEEN

    def value(self, at_first: float = 0.0) -> float:
        """`at_first` counts as one value that came before all."""
        return (at_first + self._sum) / (1.0 + self._weight)
