"""Prints the result with the rows of `vllm bench serve`, in its order. Facet's own rows appear only if they say
something: failures by kind, answers without usage, tokens found in the server's cache."""

import math
from collections.abc import Iterator, Sequence

from facet.bench.config import BenchConfig
from facet.bench.draft_rates import rates_of
from facet.bench.metrics import Metrics
from facet.bench.outcome import Outcome
from facet.draft_counts import NO_DRAFTS, DraftCounts

TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
_WIDTH = 50
_NUM_EXAMPLES = 5  # kinds of failure that are shown with their words


def result_lines(
    config: BenchConfig, metrics: Metrics, *, num_unusable: int = 0, drafts: DraftCounts = NO_DRAFTS
) -> Iterator[str]:
    """`num_unusable`: entries of the dataset that could not be sent; `drafts`: what the server made meanwhile."""
    yield f"{' Serving Benchmark Result ':=^{_WIDTH}}"
    yield _row("Successful requests:", metrics.num_completed)
    yield _row("Failed requests:", metrics.num_failed)
    for kind, count in metrics.failures.items():
        yield _row(f"  {kind}:", count)
    if num_unusable:
        yield _row("Unusable dataset entries:", num_unusable)
    if config.max_concurrency is not None:
        yield _row("Maximum request concurrency:", config.max_concurrency)
    if not math.isinf(config.request_rate):
        yield _row("Request rate configured (RPS):", config.request_rate)
    yield _row("Benchmark duration (s):", metrics.duration)
    yield _row("Total input tokens:", metrics.num_input_tokens)
    if metrics.num_cached_tokens:
        yield _row("Cached input tokens:", metrics.num_cached_tokens)
    yield _row("Total generated tokens:", metrics.num_output_tokens)
    if metrics.num_without_usage:
        yield _row("Answers without usage (chunks counted):", metrics.num_without_usage)
    yield _row("Request throughput (req/s):", metrics.request_throughput)
    if metrics.request_goodput is not None:
        yield _row("Request goodput (req/s):", metrics.request_goodput)
    yield _row("Output token throughput (tok/s):", metrics.output_throughput)
    yield _row("Peak output token throughput (tok/s):", metrics.peak_output_throughput)
    yield _row("Peak concurrent requests:", float(metrics.peak_concurrent_requests))
    yield _row("Total token throughput (tok/s):", metrics.total_throughput)
    for name in config.shown_metrics:
        yield from _metric_lines(name, metrics)
    if rates := [_row(name, value) for name, value in rates_of(drafts)]:
        yield f"{'Speculative Decoding':-^{_WIDTH}}"
        yield from rates
    yield "=" * _WIDTH


def failure_lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The first message of each kind of failure."""
    first: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.failure is not None:
            first.setdefault(outcome.failure.kind, outcome.failure.message)
    for kind, message in list(first.items())[:_NUM_EXAMPLES]:
        yield f"{kind}: {message}"


def percentile_word(percentile: float) -> str:
    return f"{percentile:g}"


def _metric_lines(name: str, metrics: Metrics) -> Iterator[str]:
    distribution, word = metrics.distributions[name], name.upper()
    yield f"{TITLES[name]:-^{_WIDTH}}"
    yield _row(f"Mean {word} (ms):", distribution.mean)
    yield _row(f"Median {word} (ms):", distribution.median)
    for percentile, value in distribution.percentiles:
        yield _row(f"P{percentile_word(percentile)} {word} (ms):", value)


def _row(name: str, value: float) -> str:
    shown = f"{value:<10}" if isinstance(value, int) else f"{value:<10.2f}"
    return f"{name:<40} {shown}"
