"""The numbers of a run, against numbers worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest

from facet.bench.config import BenchConfig
from facet.bench.metrics import compute_metrics, peak_concurrency, tokens_per_second
from facet.bench.outcome import Failure, Outcome
from facet.bench.table import failure_lines, result_lines


def outcome(start: float, *chunk_times: float, tokens: int | None = None, **fields: Any) -> Outcome:
    return Outcome(
        **{
            "arrival": start,
            "start": start,
            "chunk_times": np.array(chunk_times),
            "num_prompt_tokens": 10,
            "num_output_tokens": len(chunk_times) if tokens is None else tokens,
            "num_cached_tokens": None,
            "has_usage": True,
            "text": "",
            **fields,
        }
    )


def failed(kind: str, message: str = "why") -> Outcome:
    return outcome(0.0, failure=Failure(kind=kind, message=message))


OUTCOMES = [
    outcome(100.0, 100.1, 100.2, 100.4, tokens=4),  # 100 ms, then 300 ms for three more tokens in two chunks
    outcome(100.3, 100.5),  # one token: no TPOT, no ITL
    outcome(101.0, 101.3, 101.5),
    failed("HTTP 503"),
    failed("HTTP 503", "why else"),
    failed("connection lost"),
]


def test_counts_and_rates() -> None:
    metrics = compute_metrics(OUTCOMES, 2.0)
    assert (metrics.num_completed, metrics.num_failed) == (3, 3)
    assert metrics.failures == {"HTTP 503": 2, "connection lost": 1}
    assert (metrics.num_input_tokens, metrics.num_output_tokens) == (30, 7)
    assert (metrics.request_throughput, metrics.output_throughput, metrics.total_throughput) == (1.5, 3.5, 18.5)
    assert metrics.num_cached_tokens is None
    assert metrics.request_goodput is None


def test_distributions() -> None:
    shown = compute_metrics(OUTCOMES, 2.0, percentiles=(50.0, 99.0)).distributions
    expected = {
        "ttft": [100, 200, 300],
        "tpot": [100, 200],  # 300 ms over the three tokens after the first, whatever the chunks; 200 ms over one
        "itl": [100, 200, 200],
        "e2el": [400, 200, 500],
    }
    assert shown.keys() == expected.keys()
    for name, values in expected.items():
        assert shown[name].mean == pytest.approx(np.mean(values))
        assert shown[name].median == pytest.approx(np.median(values))
        assert shown[name].std == pytest.approx(np.std(values))
        assert shown[name].percentiles == (
            (50.0, pytest.approx(np.median(values))),
            (99.0, pytest.approx(np.percentile(values, 99))),
        )


@pytest.mark.parametrize(
    ("limits", "num_good"),
    [
        ({"ttft": 250}, 2),
        ({"ttft": 250, "tpot": 50}, 1),  # a single token has no TPOT and is within any limit
        ({"e2el": 450}, 2),
        ({"ttft": 50}, 0),
        ({"ttft": 1e6, "tpot": 1e6, "e2el": 1e6}, 3),
    ],
)
def test_goodput(limits: dict[str, float], num_good: int) -> None:
    assert compute_metrics(OUTCOMES, 2.0, goodput_limits=limits).request_goodput == num_good / 2


def test_peaks() -> None:
    good = OUTCOMES[:3]
    assert tokens_per_second(good).tolist() == [4, 2]
    assert peak_concurrency(good) == 2
    metrics = compute_metrics(OUTCOMES, 2.0)
    assert (metrics.peak_output_throughput, metrics.peak_concurrent_requests) == (4, 2)
    assert peak_concurrency([outcome(0.0, 1.0), outcome(1.0, 2.0)]) == 1  # one leaves as the other comes


def test_cached_tokens_and_missing_usage_are_counted() -> None:
    outcomes = [
        outcome(0.0, 1.0, num_cached_tokens=4),
        outcome(0.0, 1.0, num_cached_tokens=5),
        outcome(0.0, 1.0, has_usage=False),
    ]
    metrics = compute_metrics(outcomes, 1.0)
    assert (metrics.num_cached_tokens, metrics.num_without_usage) == (9, 1)


def test_nothing_succeeded() -> None:
    metrics = compute_metrics([failed("timed out")], 1.0, goodput_limits={"ttft": 1})
    assert (metrics.num_completed, metrics.output_throughput, metrics.peak_output_throughput) == (0, 0, 0)
    assert (metrics.peak_concurrent_requests, metrics.request_goodput) == (0, 0)
    assert math.isnan(metrics.distributions["ttft"].mean)


class TestTable:
    """The rows of vLLM's, by name and order."""

    def test_rows(self) -> None:
        config = BenchConfig(max_concurrency=8, request_rate=2.5, metric_percentiles="90,99.9", goodput=("ttft:250",))
        limits = config.goodput_limits
        metrics = compute_metrics(OUTCOMES[:3], 2.0, percentiles=config.percentiles, goodput_limits=limits)
        lines = list(result_lines(config, metrics))
        assert lines[0] == "============ Serving Benchmark Result ============"
        assert [(line[:40].strip(), line[40:].strip()) for line in lines if ":" in line[:41]] == [
            ("Successful requests:", "3"),
            ("Failed requests:", "0"),
            ("Maximum request concurrency:", "8"),
            ("Request rate configured (RPS):", "2.50"),
            ("Benchmark duration (s):", "2.00"),
            ("Total input tokens:", "30"),
            ("Total generated tokens:", "7"),
            ("Request throughput (req/s):", "1.50"),
            ("Request goodput (req/s):", "1.00"),
            ("Output token throughput (tok/s):", "3.50"),
            ("Peak output token throughput (tok/s):", "4.00"),
            ("Peak concurrent requests:", "2.00"),
            ("Total token throughput (tok/s):", "18.50"),
            ("Mean TTFT (ms):", "200.00"),
            ("Median TTFT (ms):", "200.00"),
            ("P90 TTFT (ms):", "280.00"),
            ("P99.9 TTFT (ms):", "299.80"),
            ("Mean TPOT (ms):", "150.00"),
            ("Median TPOT (ms):", "150.00"),
            ("P90 TPOT (ms):", "190.00"),
            ("P99.9 TPOT (ms):", "199.90"),
            ("Mean ITL (ms):", "166.67"),
            ("Median ITL (ms):", "200.00"),
            ("P90 ITL (ms):", "200.00"),
            ("P99.9 ITL (ms):", "200.00"),
            ("Mean E2EL (ms):", "366.67"),
            ("Median E2EL (ms):", "400.00"),
            ("P90 E2EL (ms):", "480.00"),
            ("P99.9 E2EL (ms):", "499.80"),
        ]
        assert "---------------Time to First Token----------------" in lines
        assert "-----Time per Output Token (excl. 1st token)------" in lines
        assert "---------------Inter-token Latency----------------" in lines
        assert "----------------End-to-end Latency----------------" in lines

    def test_what_went_wrong_has_rows_of_its_own(self) -> None:
        config = BenchConfig(percentile_metrics="ttft")
        outcomes = [*OUTCOMES, outcome(0.0, 1.0, has_usage=False, num_cached_tokens=3)]
        text = "\n".join(result_lines(config, compute_metrics(outcomes, 2.0), num_unusable=2))
        assert "  HTTP 503:                              2" in text
        assert "  connection lost:                       1" in text
        assert "Unusable dataset entries:                2" in text
        assert "Answers without usage (chunks counted):  1" in text
        assert "Cached input tokens:                     3" in text
        assert "TPOT" not in text

    def test_each_kind_of_failure_is_explained_once(self) -> None:
        assert list(failure_lines(OUTCOMES)) == ["HTTP 503: why", "connection lost: why"]
