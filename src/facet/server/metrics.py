"""Prometheus metrics under vLLM's names, so that its dashboards work.

What the engine counts is read from its `Stats` on request; what only the front process sees (latencies, ends) is
recorded as it happens. The registry is this app's own.
"""

import logging
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from facet.engine.messages import Stats
from facet.server.engine_bridge import EngineBridge
from facet.version import __version__

logger = logging.getLogger(__name__)

_LABELS = ("model_name", "engine")
_ENGINE = "0"
# vLLM's buckets: a dashboard's quantiles are made from them.
_FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
                        20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                  80.0)  # fmt: skip
_REQUEST_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
                    480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
_LENGTH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
_COUNT_BUCKETS = (1, 2, 5, 10, 20)


class Metrics:
    """Everything /metrics shows."""

    def __init__(self, bridge: EngineBridge, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": _ENGINE}
        self._registry.register(_EngineCollector(bridge, self._labels))
        self.first_token = self._histogram("time_to_first_token_seconds", "until the first token", _FIRST_TOKEN_BUCKETS)
        self.between_tokens = self._histogram("inter_token_latency_seconds", "between tokens", _TOKEN_BUCKETS)
        self.per_token = self._histogram(
            "request_time_per_output_token_seconds", "a request's mean time per token after the first", _TOKEN_BUCKETS
        )
        self.whole = self._histogram("e2e_request_latency_seconds", "of whole requests", _REQUEST_BUCKETS)
        self.queued = self._histogram("request_queue_time_seconds", "waiting for the first step", _REQUEST_BUCKETS)
        self.prefill = self._histogram("request_prefill_time_seconds", "first step to first token", _REQUEST_BUCKETS)
        self.decode = self._histogram("request_decode_time_seconds", "first token to last", _REQUEST_BUCKETS)
        self.inference = self._histogram("request_inference_time_seconds", "first step to last token", _REQUEST_BUCKETS)
        self.prompt_length = self._histogram("request_prompt_tokens", "tokens of prompts", _LENGTH_BUCKETS)
        self.answer_length = self._histogram("request_generation_tokens", "tokens of answers", _LENGTH_BUCKETS)
        self.asked_tokens = self._histogram("request_params_max_tokens", "max_tokens asked for", _LENGTH_BUCKETS)
        self.asked_n = self._histogram("request_params_n", "n asked for", _COUNT_BUCKETS)
        self._ends = Counter(
            "vllm:request_success",
            "Finished requests, by finish reason.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        for reason in ("stop", "length", "abort"):
            self._ends.labels(**self._labels, finished_reason=reason)
        loops = Counter(
            "facet:loop_guard_stops",
            "Answers ended because they repeated themselves.",
            _LABELS,
            registry=self._registry,
        )
        self.loops: Counter = loops.labels(**self._labels)

    def count_end(self, reason: str) -> None:
        self._ends.labels(**self._labels, finished_reason=reason).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}", f"Histogram: {meaning}.", _LABELS, registry=self._registry, buckets=buckets
        )
        child: Histogram = histogram.labels(**self._labels)
        return child


class CallTimer:
    """The latencies of one call's answers."""

    def __init__(
        self, metrics: Metrics, num_prompt_tokens: list[int], *, n: int, max_tokens: int | None, log_as: str | None
    ) -> None:
        """`log_as` is the id under which each answer gets a line in the log; None: no lines."""
        self.start = time.monotonic()
        self._log_as = log_as
        self._metrics = metrics
        self._num_prompt_tokens = num_prompt_tokens
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._prefill: dict[int, float] = {}
        metrics.asked_n.observe(n)
        if max_tokens is not None:
            metrics.asked_tokens.observe(max_tokens)

    def on_tokens(self, index: int, now: float, queue_seconds: float) -> None:
        """`queue_seconds` is what the engine says this answer waited for its first step."""
        last = self._last.get(index)
        if last is None:
            self._first[index] = now
            self._prefill[index] = max(0.0, now - self.start - queue_seconds)
            self._metrics.first_token.observe(now - self.start)
            self._metrics.queued.observe(queue_seconds)
            self._metrics.prefill.observe(self._prefill[index])
        else:
            self._metrics.between_tokens.observe(now - last)
        self._last[index] = now

    def on_end(self, index: int, reason: str, num_tokens: int, *, is_loop: bool) -> None:
        now, metrics = time.monotonic(), self._metrics
        metrics.count_end(reason)
        if is_loop:
            metrics.loops.inc()
        metrics.whole.observe(now - self.start)
        metrics.prompt_length.observe(self._num_prompt_tokens[index])
        metrics.answer_length.observe(num_tokens)
        if self._log_as is not None:
            num_prompt_tokens, seconds = self._num_prompt_tokens[index], now - self.start
            logger.info(
                "%s[%d]: %d + %d tokens, %s, %.3f s",
                self._log_as, index, num_prompt_tokens, num_tokens, reason, seconds,
            )  # fmt: skip
        if index in self._first:
            metrics.decode.observe(self._last[index] - self._first[index])
            metrics.inference.observe(self._prefill[index] + self._last[index] - self._first[index])
        if num_tokens > 1 and index in self._first:
            metrics.per_token.observe((now - self._first[index]) / (num_tokens - 1))

    def on_gone(self, num_open: int) -> None:
        """The client left before this many answers had ended."""
        for _ in range(num_open):
            self._metrics.count_end("abort")


class _EngineCollector(Collector):
    """Reads the engine's own counters when metrics are collected."""

    def __init__(self, bridge: EngineBridge, labels: dict[str, str]) -> None:
        self._bridge = bridge
        self._names, self._values = list(labels), list(labels.values())

    def describe(self) -> list[Metric]:
        return []  # asked once at registration, when there are no numbers yet

    def collect(self) -> Iterator[Metric]:
        counters, stats = self._bridge.counters, self._bridge.last_stats
        yield self._counter("prompt_tokens", "Prompt tokens processed.", counters.num_prompt_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", counters.num_generation_tokens)
        yield InfoMetricFamily("facet:version", "The server's version.", value={"version": __version__})
        if stats is not None:
            yield from self._of_engine(stats)

    def _of_engine(self, stats: Stats) -> Iterator[Metric]:
        yield self._gauge("num_requests_running", "Running requests.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Waiting requests.", stats.num_waiting)
        usage = stats.num_blocks_in_tables / max(1, stats.num_blocks)
        yield self._gauge("kv_cache_usage_perc", "Share of cache blocks that running requests hold.", usage)
        yield self._blocks_by_kind(stats)
        cached = stats.num_blocks_cached / max(1, stats.num_blocks)
        yield self._gauge("kv_cache_cached_perc", "Share of cache blocks kept for prefixes.", cached)
        yield self._counter("num_preemptions", "Preemptions for lack of memory.", stats.num_preemptions)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up.", stats.num_prompt_tokens)
        yield self._counter("prefix_cache_hits", "Prompt tokens found.", stats.num_prompt_tokens_hit)
        corrupted = stats.num_corrupted_requests
        yield self._counter("corrupted_requests", "Requests ended because their logits were not finite.", corrupted)
        yield self._counter("num_steps", "Steps of the engine.", stats.num_steps)
        yield self._counter("computed_tokens", "Tokens computed, of prompts and answers.", stats.num_computed_tokens)

    def _blocks_by_kind(self, stats: Stats) -> Metric:
        family = GaugeMetricFamily(
            "facet:kv_cache_blocks",
            "Cache blocks in the block tables of running requests, by kind of layer.",
            labels=[*self._names, "kind"],
        )
        for kind, num_blocks in stats.num_blocks_by_kind:
            family.add_metric([*self._values, kind], num_blocks)
        return family

    def _gauge(self, name: str, meaning: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", meaning, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, meaning: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", meaning, labels=self._names)
        family.add_metric(self._values, value)
        return family
