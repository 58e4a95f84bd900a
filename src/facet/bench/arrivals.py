"""Computes when requests start: all at once, at a rate, or along a ramp, in seconds from the start of the run."""

import math

import numpy as np

from facet.bench.config import BenchConfig


def arrival_times(config: BenchConfig, num_arrivals: int) -> list[float]:
    """Gaps between arrivals are drawn from a gamma distribution, which is a Poisson process where burstiness is 1.

    At a constant rate they are then scaled, so that every seed spreads its arrivals over the same time.
    """
    rates = _rates(config, num_arrivals)
    if not np.isfinite(rates).all():
        return [0.0] * num_arrivals
    if math.isinf(config.burstiness):
        gaps = 1.0 / rates
    else:
        random = np.random.default_rng(config.seed)
        gaps = random.gamma(shape=config.burstiness, scale=1.0 / (rates * config.burstiness))
    times = np.cumsum(gaps)
    if config.ramp_up_strategy is None and times[-1] > 0:
        times *= num_arrivals / config.request_rate / times[-1]
    return [float(time) for time in times]


def _rates(config: BenchConfig, num_arrivals: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The rate at each arrival."""
    if config.ramp_up_strategy is None:
        return np.full(num_arrivals, config.request_rate)
    start, end = config.ramp_up_start_rps, config.ramp_up_end_rps
    assert start is not None, "check_config lets no ramp without its ends pass"
    assert end is not None, "nor with only one of them"
    progress = np.arange(num_arrivals) / max(num_arrivals - 1, 1)
    if config.ramp_up_strategy == "linear":
        return start + (end - start) * progress
    return start * (end / start) ** progress
