"""Learns how long steps with prompts take, from their rows and the keys that these see.

    seconds = rows * row + pairs * pair + keys * key + step

Rows cost their products with the weights. *Pairs*, each row of a prompt with each key before it, cost attention: at
tens of thousands of tokens as much as the products. *Keys* before single tokens cost the time to read them. Layers with
a window need no term of their own: past the window every row sees as many keys as any other.

Steps without prompts are not learned from: they are bound by reading the weights, and nothing is decided by their time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facet.step import StepPlan

# A step that takes longer than so many times what was expected met something else, such as another process.
_STRANGE = 4.0
_MEMORY = 0.98
_NUM_SWEEPS = 16
# Steps are predicted for up to so many times the rows that any step has had, and at first for twice as few.
_FARTHEST, _ROWS_AT_FIRST = 2, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The cost of a step, in seconds."""

    row: float = 0.0
    pair: float = 0.0
    key: float = 0.0
    step: float = 0.0
    max_num_rows: int | None = None  # that these are known to hold for; None: any number


NO_COST = StepCost()


class CostLearner:
    """Fits costs to the steps that were seen, the recent ones above all: least squares of relative errors, and no cost
    below zero.

    Costs are adjusted one by one, in the order above, and start from what they were. So what a step does not tell
    apart stays as it is, and the first step's time counts as that of its rows.
    """

    def __init__(self) -> None:
        self._costs = [0.0] * 4
        self._squares = np.zeros((4, 4))
        self._products = np.zeros(4)
        self._most_rows = _ROWS_AT_FIRST

    def cost(self) -> StepCost:
        row, pair, key, step = self._costs
        return StepCost(row=row, pair=pair, key=key, step=step, max_num_rows=_FARTHEST * self._most_rows)

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """Learns how long a step took. Steps that towers worked in, or that wanted logits of prompts, tell nothing."""
        computes_prompts = bool((plan.num_scheduled - plan.num_drafts > 1).any())
        wants_more_logits = bool((plan.num_logit_rows > 1 + plan.num_drafts).any())
        if not computes_prompts or wants_more_logits or plan.media.encoded:
            return
        seen = _amounts(plan)
        expected = float(seen @ self._costs)
        if expected > 0:
            seconds = min(seconds, _STRANGE * expected)
        relative = seen / seconds
        self._squares = _MEMORY * self._squares + np.outer(relative, relative)
        self._products = _MEMORY * self._products + relative
        self._most_rows = max(self._most_rows, plan.num_tokens)
        self._fit()

    def _fit(self) -> None:
        squares, products, costs = self._squares.tolist(), self._products.tolist(), self._costs
        for _ in range(_NUM_SWEEPS):
            for index, (own, product) in enumerate(zip(squares, products, strict=True)):
                if own[index] > 0:
                    others = sum(a * b for a, b in zip(own, costs, strict=True)) - own[index] * costs[index]
                    costs[index] = max(0.0, (product - others) / own[index])


def _amounts(plan: StepPlan) -> NDArray[np.float64]:
    """The amounts that a step's cost is made of: rows, pairs, keys, and one step."""
    before, rows = plan.num_computed.astype(np.float64), plan.num_scheduled.astype(np.float64)
    is_prompt = plan.num_scheduled - plan.num_drafts > 1
    pairs = rows * before + rows * (rows + 1) / 2
    return np.array([rows.sum(), pairs[is_prompt].sum(), (before + 1)[~is_prompt].sum(), 1.0])
