"""Measures how many tokens of a batch a model predicts right, given all tokens before each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.bundled_model.stream import TARGET, Batch

_LONG = 2048  # tokens before the end of an answer from which on its prompt counts as long


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScore:
    """Shares of tokens that had to be produced, and of unbroken runs of them (a call, an answer), that were right."""

    tokens: float
    runs: float
    num_runs: int
    long_runs: float  # runs that end far behind the beginning of their document
    num_long_runs: int

    def line(self) -> str:
        long = f", after long prompts {self.long_runs:.1%} of {self.num_long_runs}" if self.num_long_runs else ""
        return f"tokens right {self.tokens:.2%}, whole answers right {self.runs:.1%} of {self.num_runs}{long}"


def score(batch: Batch, is_right: NDArray[np.bool_]) -> HeldOutScore:
    """`is_right`: [rows, row length], whether the most likely token at each place was the next one."""
    # Rows end with an ignored place, so runs do not reach from one row into the next.
    is_target = (batch.label_kinds == TARGET).ravel()
    steps = np.diff(is_target.astype(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    wrong_so_far = np.concatenate(([0], np.cumsum(~is_right.ravel() & is_target)))
    runs_right = wrong_so_far[ends] == wrong_so_far[starts]
    is_long = batch.positions.ravel()[ends - 1] >= _LONG
    return HeldOutScore(
        tokens=1 - float(wrong_so_far[-1]) / max(1, int(is_target.sum())),
        runs=_mean(runs_right),
        num_runs=len(runs_right),
        long_runs=_mean(runs_right[is_long]),
        num_long_runs=int(is_long.sum()),
    )


def _mean(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else 0.0
