"""Compares two transcripts of one request, run alone and together: the same, a rounding tie, or corruption.

Sums in another order change the last bits of a log-probability. Where two tokens are nearly equal, that can change the
choice, and from then on the texts differ although nothing is wrong: a *tie*. So texts are never compared, only
log-probabilities of the same tokens:

    the same token         its two log-probabilities must agree within `logprob`
    different tokens       alone, the two candidates must lie within `tie` of each other: then it is a tie, and
                           what follows belongs to different texts
    anything else          corruption: other keys, other weights or another request's tokens were read

Pure values; knows no engine and no tensor.
"""

import math
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One generated token, with its log-probability and those of the likeliest tokens."""

    token_id: int
    logprob: float
    best: tuple[tuple[int, float], ...]  # the likeliest tokens and their log-probabilities, likeliest first

    def logprob_of(self, token_id: int) -> float | None:
        """The log-probability of a token. None: it is not among the best."""
        return self.logprob if token_id == self.token_id else dict(self.best).get(token_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What an engine computed for one request."""

    tokens: tuple[ScoredToken, ...] = ()
    prompt_logprobs: tuple[float, ...] = ()
    error: str | None = None  # why the request ended early; None: it did not


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large a difference may be and still count as rounding. Above 1, log-probabilities are compared relatively."""

    logprob: float
    tie: float

    @property
    def is_exact(self) -> bool:
        return self.logprob == 0


# Where the same bits are promised: even two candidates that are equally likely are chosen between in the same way.
EXACT = Limits(logprob=0.0, tie=-math.inf)

# By the type a model computes in. Two candidates may move towards each other: twice the one is the other.
LIMITS = {
    "float32": Limits(logprob=5e-4, tie=1e-3),
    "float16": Limits(logprob=0.05, tie=0.1),
    "bfloat16": Limits(logprob=0.3, tie=0.6),
}


class Outcome(Enum):
    SAME = "same"
    TIE = "tie"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    deviation: float  # the largest between log-probabilities of the same tokens; infinite where there is no number
    why: str = ""


def judge(alone: Transcript, other: Transcript, limits: Limits) -> Verdict:
    """Compares `other` with what the request got `alone`."""
    if other.error is not None:
        return Verdict(Outcome.CORRUPT, math.inf, f"ended with an error: {other.error}")
    if len(alone.prompt_logprobs) != len(other.prompt_logprobs) or len(alone.tokens) != len(other.tokens):
        counts = f"{len(alone.tokens)} tokens alone, {len(other.tokens)} together"
        return Verdict(Outcome.CORRUPT, math.inf, f"lengths differ: {counts}")
    largest = 0.0
    for index, (expected, got) in enumerate(zip(alone.prompt_logprobs, other.prompt_logprobs, strict=True)):
        largest = max(largest, deviation(expected, got))
        if largest > limits.logprob:
            return Verdict(Outcome.CORRUPT, largest, f"prompt token {index + 1} is off by {largest:.2g}")
    for index, (mine, theirs) in enumerate(zip(alone.tokens, other.tokens, strict=True)):
        if theirs.token_id != mine.token_id:
            return _judge_parting(index, mine, theirs, limits, largest)
        largest = max(largest, deviation(mine.logprob, theirs.logprob))
        if largest > limits.logprob:
            return Verdict(Outcome.CORRUPT, largest, f"token {index} is off by {largest:.2g}")
    return Verdict(Outcome.SAME, largest)


def _judge_parting(index: int, mine: ScoredToken, theirs: ScoredToken, limits: Limits, largest: float) -> Verdict:
    """Judges the first different token. Its context is still the same, so the distributions must agree."""
    for token_id, logprob in mine.best:
        other = theirs.logprob_of(token_id)
        if other is not None:
            largest = max(largest, deviation(logprob, other))
    if largest > limits.logprob:
        return Verdict(Outcome.CORRUPT, largest, f"token {index} is another, and its rivals are off by {largest:.2g}")
    # A token outside the best is at most as likely as the last of them.
    candidate = mine.logprob_of(theirs.token_id)
    if candidate is None:
        candidate = mine.best[-1][1] if mine.best else -math.inf
    gap = mine.logprob - candidate
    if gap <= limits.tie:
        return Verdict(Outcome.TIE, largest, f"token {index} is a tie: the candidates are {gap:.2g} apart")
    return Verdict(Outcome.CORRUPT, max(largest, gap), f"token {index} is another, {gap:.2g} less likely alone")


def deviation(expected: float, got: float) -> float:
    difference = abs(expected - got) / max(1.0, abs(expected))
    return difference if math.isfinite(difference) else math.inf
