"""Computes the figures of a run from its outcomes, as `vllm bench serve` defines them. Pure arithmetic.

Only successful requests count, except in the counts of failures.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from facet.bench.outcome import Outcome

Values = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A distribution of times in milliseconds."""

    mean: float
    median: float
    std: float
    percentiles: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    duration: float
    num_completed: int
    failures: Mapping[str, int]  # how many of each kind
    num_input_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None  # None: no answer spoke of a cache
    num_without_usage: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_throughput: float
    peak_output_throughput: float
    peak_concurrent_requests: int
    distributions: Mapping[str, Distribution]

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())


def compute_metrics(
    outcomes: Sequence[Outcome],
    duration: float,
    *,
    percentiles: Sequence[float] = (99.0,),
    goodput_limits: Mapping[str, float] | None = None,
) -> Metrics:
    good = [outcome for outcome in outcomes if outcome.is_success]
    num_input_tokens = sum(outcome.num_prompt_tokens for outcome in good)
    num_output_tokens = sum(outcome.num_output_tokens for outcome in good)
    cached = [outcome.num_cached_tokens for outcome in good if outcome.num_cached_tokens is not None]
    within = sum(_is_within(outcome, goodput_limits) for outcome in good) if goodput_limits else None
    values = {
        "ttft": np.array([outcome.ttft for outcome in good]),
        "tpot": np.array([tpot for outcome in good if (tpot := outcome.tpot) is not None]),
        "itl": np.concatenate([outcome.itls for outcome in good]) if good else np.array([]),
        "e2el": np.array([outcome.latency for outcome in good]),
    }
    return Metrics(
        duration=duration,
        num_completed=len(good),
        failures=Counter(outcome.failure.kind for outcome in outcomes if outcome.failure is not None),
        num_input_tokens=num_input_tokens,
        num_output_tokens=num_output_tokens,
        num_cached_tokens=sum(cached) if cached else None,
        num_without_usage=sum(not outcome.has_usage for outcome in good),
        request_throughput=len(good) / duration,
        request_goodput=None if within is None else within / duration,
        output_throughput=num_output_tokens / duration,
        total_throughput=(num_input_tokens + num_output_tokens) / duration,
        peak_output_throughput=float(max(tokens_per_second(good), default=0)),
        peak_concurrent_requests=peak_concurrency(good),
        distributions={name: _distribution(values[name], percentiles) for name in values},
    )


def tokens_per_second(outcomes: Sequence[Outcome]) -> npt.NDArray[np.int64]:
    """Chunks that came in each second, counted from the start of the first request."""
    times = [outcome.chunk_times for outcome in outcomes]
    if not times:
        return np.array([], dtype=np.int64)
    beginning = min(outcome.start for outcome in outcomes)
    return np.bincount((np.concatenate(times) - beginning).astype(np.int64))


def peak_concurrency(outcomes: Sequence[Outcome]) -> int:
    """Most requests between their start and their last chunk at the same time."""
    changes = [(outcome.start, 1) for outcome in outcomes]
    changes += [(outcome.start + outcome.latency, -1) for outcome in outcomes]
    changes.sort()  # at the same moment one leaves before the next comes
    return max(np.cumsum([change for _, change in changes]).tolist(), default=0)


def _is_within(outcome: Outcome, limits: Mapping[str, float]) -> bool:
    measured = {"ttft": outcome.ttft, "tpot": outcome.tpot or 0.0, "e2el": outcome.latency}
    return all(measured[name] * 1e3 <= limit for name, limit in limits.items())


def _distribution(seconds: Values, percentiles: Sequence[float]) -> Distribution:
    if not len(seconds):
        nothing = tuple((percentile, math.nan) for percentile in percentiles)
        return Distribution(mean=math.nan, median=math.nan, std=math.nan, percentiles=nothing)
    values = seconds * 1e3
    return Distribution(
        mean=float(values.mean()),
        median=float(np.median(values)),
        std=float(values.std()),
        percentiles=tuple((percentile, float(np.percentile(values, percentile))) for percentile in percentiles),
    )
