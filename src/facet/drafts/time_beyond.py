"""What steps take beyond the times measured at start, learned while they run.

Two kinds of steps are told apart. Steps that overlap with the host's work take as long as the device does. A step with
drafts, and the one behind it, is planned and launched only once the tokens before it are known, unless it is ahead of
them: the host's work counts in full. Long contexts make both longer. How much all this is depends on how many requests
run, so it is learned in classes of them, each twice as wide as the one before.

What was learned fades while the other kind runs. A kind that has not run for long is believed to take no more than it
could at best, so it is tried again as soon as that would pay, and nothing is given up for ever.
"""

from collections import defaultdict

# A step that takes longer than so many times what was expected met something else, such as another process. Should it
# be the rule, expectations double until they are right.
_STRANGE = 2.0
_MEMORY = 0.97  # of what was seen, for every step more
_MEMORY_UNSEEN = 0.998  # for every step of the other kind


class TimeBeyond:
    """Seconds beyond those that were measured, by the number of requests."""

    def __init__(self) -> None:
        self._plain: defaultdict[int, _Average] = defaultdict(_Average)
        self._waited: defaultdict[int, _Average] = defaultdict(_Average)

    def learn(self, num_requests: int, seconds: float, expected: float, *, has_waited: bool) -> None:
        """A step took so long; so long it would take by the times measured.

        `has_waited`: for the tokens before it, on account of drafts.
        """
        number = num_requests.bit_length()
        known = self.waited(num_requests) if has_waited else self.plain(num_requests)
        seconds = min(seconds, _STRANGE * max(expected, expected + known))
        seen, unseen = (self._waited, self._plain) if has_waited else (self._plain, self._waited)
        seen[number].add(seconds - expected)
        unseen[number].fade()

    def plain(self, num_requests: int) -> float:
        return self._plain[num_requests.bit_length()].value(at_best=0.0)

    def waited(self, num_requests: int) -> float:
        return self._waited[num_requests.bit_length()].value(at_best=self.plain(num_requests))


class _Average:
    """An average of values that come one by one, the recent ones above all."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float) -> None:
        self._sum = _MEMORY * self._sum + value
        self._weight = _MEMORY * self._weight + 1.0

    def fade(self) -> None:
        self._sum *= _MEMORY_UNSEEN
        self._weight *= _MEMORY_UNSEEN

    def value(self, at_best: float) -> float:
        """`at_best` counts as one value more."""
        return (at_best + self._sum) / (1.0 + self._weight)
