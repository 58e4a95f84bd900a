"""Tracks the time that a step still has for prompts, while it is being decided.

Running answers get their next token when the step ends, so a long prompt computed beside them delays them all. Where a
step's time is limited, prompts are cut into chunks that fit. Who is first in line goes on by a few rows whatever they
take, so that a limit shorter than any step starves nobody.
"""

import math

import numpy as np
from numpy.typing import NDArray

from facet.scheduler.step_cost import StepCost

# So few rows cost little beside the weights, which every step reads.
LEAST_ROWS = 64
# The share of a step's time that is aimed at: what is expected is never exact.
AIM = 0.95


class TimeLeft:
    """The time that is left in a step. Changes with `take`, as `StepEncoding` does."""

    def __init__(self, seconds: float | None, cost: StepCost, num_computed: NDArray[np.int64]) -> None:
        """`num_computed` of the requests that generate. Without any nobody is delayed, and time is not limited."""
        self.is_limited = seconds is not None and len(num_computed) > 0
        self.was_short = False  # a prompt got fewer rows than there were otherwise
        self._cost = cost
        self._is_fresh = True
        if seconds is not None:
            singles = len(num_computed) * cost.row + float(num_computed.sum()) * cost.key
            self._seconds = max(0.0, AIM * seconds - cost.step - singles)
            self._rows = math.inf if cost.max_num_rows is None else cost.max_num_rows - len(num_computed)

    def most_rows(self, start: int, wanted: int, least: int = 1) -> int:
        """How many rows, up to `wanted`, a prompt may go on by from `start`. At least `least` of the first in line."""
        if not self.is_limited:
            return wanted
        # Rows and pairs of n rows are a * n^2 + b * n seconds.
        a, b = self._cost.pair / 2, self._cost.row + self._cost.pair * (start + 0.5)
        divisor = b + math.sqrt(b * b + 4 * a * self._seconds)
        most = min(2 * self._seconds / divisor if divisor else math.inf, self._rows)
        if self._is_fresh:
            most = max(most, LEAST_ROWS, least)
        if most >= wanted:
            return wanted
        self.was_short = True
        return int(most)

    def take(self, start: int, num_rows: int) -> None:
        if self.is_limited and num_rows:
            pairs = num_rows * start + num_rows * (num_rows + 1) / 2
            self._seconds = max(0.0, self._seconds - num_rows * self._cost.row - pairs * self._cost.pair)
            self._rows = max(0, self._rows - num_rows)
            self._is_fresh = False
