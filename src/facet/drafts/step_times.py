"""How long steps take, and how many drafts are worth their time.

A draft is one row more in a step. Up to some number of rows a step takes hardly longer for it, since it is bound by
reading weights; beyond, every row costs its share. So what drafts bring depends on how many requests run: the curve of
seconds over rows is measured at start, and corrected by what steps then really take (`time_beyond.py`).

A drafter that is a model takes time of its own, behind the step whose tokens it continues: one pass for the first draft
of all requests, one for the second, and so on.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from facet.drafts.guess import Offer
from facet.drafts.time_beyond import TimeBeyond
from facet.step import StepPlan

# Drafts must promise so much more than none: what is expected is never exact.
_LEAST_GAIN = 1.02
# So much more where steps overlap so far: to begin and to end both cost a step that does not.
_LEAST_GAIN_TO_BEGIN = 1.06
_NO_TIME: Mapping[int, float] = MappingProxyType({1: 0.0})


class StepTimes:
    def __init__(self, measured: Mapping[int, float], drafting: Mapping[int, float] = MappingProxyType({})) -> None:
        """Seconds of steps by rows; between two of them seconds grow evenly. Steps with more rows have no drafts.

        `drafting`: seconds that a drafter takes for one draft of every request, by their number; none where drafts take
        no time on the device.
        """
        most = max(measured)
        self._sizes = sorted(measured)
        self._seconds = _curve(measured, most)
        self._draft_seconds = _curve(drafting or _NO_TIME, most)
        self._beyond = TimeBeyond()
        self._is_waited_for = False  # the step learned of last, by the next one

    def learn_step(self, plan: StepPlan, seconds: float) -> None:
        """A step took so long, drafting for the next one included. Steps come in the order of their launch."""
        has_waited = self._is_waited_for or plan.has_drafts
        self._is_waited_for = plan.has_drafts or plan.num_to_draft > 0
        if int((plan.num_scheduled - plan.num_drafts).max()) > 1:
            return  # what it computed of prompts says nothing about drafts
        self.learn(
            plan.num_tokens,
            seconds,
            num_requests=len(plan.seats),
            has_waited=has_waited,
            num_to_draft=plan.num_to_draft,
        )

    def learn(
        self, num_rows: int, seconds: float, *, num_requests: int, has_waited: bool, num_to_draft: int = 0
    ) -> None:
        """Like `learn_step`, for a step that computed only single tokens and drafts.

        `has_waited`: the step was launched once the tokens before it were known, because it or the one before had
        drafts.
        """
        if num_rows < len(self._seconds):
            expected = self._seconds[num_rows] + num_to_draft * self._draft_seconds[num_requests]
            self._beyond.learn(num_requests, seconds, expected, has_waited=has_waited)

    def could_gain(self, num_rows: int) -> bool:
        """Whether drafts that are all right would be worth it, beside so many requests."""
        if num_rows + 1 >= len(self._seconds):
            return False
        # Between two sizes that were measured the rate only rises or only falls.
        sizes = [num_rows + 1, *self._sizes[bisect_right(self._sizes, num_rows) :]]
        return self._best([(size, self._seconds[size]) for size in sizes], num_rows) > 0

    def worthwhile_length(self, chances: Sequence[float], num_requests: int, *, is_drafting: bool) -> int:
        """How many drafts of every request a model should make for the next step.

        `chances`: of the n-th draft of any request and all before it to be right. `is_drafting`: it did for this one.
        """
        longest = min(len(chances), (len(self._seconds) - 1) // num_requests - 1) if num_requests else 0
        if longest < 1:
            return 0
        drafting = self._draft_seconds[num_requests]
        options = (
            (num_requests * (1 + num_right), self._seconds[num_requests * (1 + length)] + length * drafting)
            for length, num_right in enumerate(itertools.accumulate(chances[:longest]), 1)
        )
        return self._best(options, num_requests, _LEAST_GAIN if is_drafting else _LEAST_GAIN_TO_BEGIN)

    def choose(self, offers: Mapping[int, Offer], num_running: int) -> dict[int, Sequence[int]]:
        """The drafts to compute beside so many requests, by request number."""
        counts = self.worthwhile([offer.chances for offer in offers.values()], num_running) if offers else []
        return {
            number: offer.token_ids[:count]
            for (number, offer), count in zip(offers.items(), counts, strict=True)
            if count
        }

    def worthwhile(self, chances: Sequence[Sequence[float]], num_rows: int) -> list[int]:
        """How many drafts of each request to compute, so that a second brings most tokens.

        `chances` never rise along a request's drafts, so those most likely right form a beginning of each.
        """
        seconds = self._seconds[num_rows + 1 :]
        if not seconds:
            return [0] * len(chances)
        ranked = sorted(itertools.chain.from_iterable(chances), reverse=True)
        options = zip(itertools.accumulate(ranked), seconds, strict=False)
        num_drafts = self._best(((num_rows + num_right, own) for num_right, own in options), num_rows)
        if not num_drafts:
            return [0] * len(chances)
        least = ranked[num_drafts - 1]
        num_least = num_drafts - ranked.index(least)  # more may be as likely as that
        counts = []
        for own in chances:
            count = 0
            for chance in own:
                if chance < least or (chance == least and not num_least):
                    break
                num_least -= chance == least
                count += 1
            counts.append(count)
        return counts

    def _best(self, options: Iterable[tuple[float, float]], num_requests: int, least_gain: float = _LEAST_GAIN) -> int:
        """Which of these, tokens and seconds, promises most tokens a second, from 1 on; 0: a step of so many requests
        without drafts does."""
        waited = self._beyond.waited(num_requests)
        best, most = 0, least_gain * self._plain_rate(num_requests)
        for index, (num_tokens, seconds) in enumerate(options, 1):
            seconds += waited
            if seconds > 0 and (rate := num_tokens / seconds) > most:
                best, most = index, rate
        return best

    def _plain_rate(self, num_requests: int) -> float:
        """Tokens per second without drafts."""
        seconds = self._seconds[num_requests] + self._beyond.plain(num_requests)
        return num_requests / seconds if seconds > 0 else 0.0


def _curve(measured: Mapping[int, float], most: int) -> list[float]:
    """Seconds from 0 to the most there are."""
    counts = sorted(measured)
    # More rows never take less time: what says otherwise was disturbed.
    rising = np.maximum.accumulate([measured[count] for count in counts])
    curve: list[float] = np.interp(np.arange(most + 1), counts, rising).tolist()
    return curve
