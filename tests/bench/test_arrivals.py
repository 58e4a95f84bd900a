"""When requests begin."""

import math

import numpy as np
import pytest

from facet.bench.arrivals import arrival_times
from facet.bench.config import BenchConfig


def test_all_at_once() -> None:
    assert arrival_times(BenchConfig(), 5) == [0.0] * 5


def test_a_rate_spreads_them_over_the_same_time_for_every_seed() -> None:
    for seed in range(3):
        times = arrival_times(BenchConfig(request_rate=20, seed=seed), 400)
        assert times[-1] == pytest.approx(20)
        assert times == sorted(times)
        assert times == arrival_times(BenchConfig(request_rate=20, seed=seed), 400)


@pytest.mark.parametrize(("burstiness", "expected"), [(1.0, 1.0), (4.0, 0.5), (0.25, 2.0), (math.inf, 0.0)])
def test_burstiness_is_the_spread_of_the_gaps(burstiness: float, expected: float) -> None:
    """Of a gamma distribution, the standard deviation over the mean is one over the root of its shape."""
    times = arrival_times(BenchConfig(request_rate=100, burstiness=burstiness), 20_000)
    gaps = np.diff([0.0, *times])
    assert gaps.std() / gaps.mean() == pytest.approx(expected, rel=0.05, abs=1e-6)


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_a_ramp_begins_slow_and_ends_fast(strategy: str) -> None:
    config = BenchConfig(
        ramp_up_strategy=strategy, ramp_up_start_rps=2, ramp_up_end_rps=50, burstiness=math.inf, seed=1
    )
    gaps = np.diff([0.0, *arrival_times(config, 11)])
    assert (gaps[0], gaps[-1]) == (pytest.approx(1 / 2), pytest.approx(1 / 50))
    assert gaps[5] == pytest.approx(1 / (26 if strategy == "linear" else 10))
    assert arrival_times(config, 1) == [pytest.approx(1 / 2)]
