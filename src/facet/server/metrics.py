"""Prometheus metrics under vLLM's names, so that its dashboards work; names of Facet's own begin with `facet:`.

What the engine counts is read on request (engine_metrics.py); what only the front process sees (latencies, ends) is
recorded as it happens (call_timer.py, http_metrics.py). The registry is this app's own.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest

from facet.config import EngineConfig
from facet.server.engine_bridge import EngineBridge
from facet.server.engine_metrics import EngineMetrics
from facet.server.http_metrics import HttpMetrics

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

    def __init__(self, bridge: EngineBridge, config: EngineConfig, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": _ENGINE}
        self._registry.register(EngineMetrics(bridge, config, self._labels))
        ProcessCollector(registry=self._registry)
        self.http = HttpMetrics(self._registry)
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
        self.media = self._histogram(
            "facet:media_preparation_seconds", "fetching and preparing a request's media", _FIRST_TOKEN_BUCKETS
        )
        self.prompt_length = self._histogram("request_prompt_tokens", "tokens of prompts", _LENGTH_BUCKETS)
        self.computed_length = self._histogram(
            "request_prefill_kv_computed_tokens", "tokens of prompts that were not cached", _LENGTH_BUCKETS
        )
        self.answer_length = self._histogram("request_generation_tokens", "tokens of answers", _LENGTH_BUCKETS)
        self.longest_answer = self._histogram(
            "request_max_num_generation_tokens", "tokens of the longest of a request's n answers", _LENGTH_BUCKETS
        )
        self.asked_tokens = self._histogram("request_params_max_tokens", "max_tokens asked for", _LENGTH_BUCKETS)
        self.asked_n = self._histogram("request_params_n", "n asked for", _COUNT_BUCKETS)
        self._ends = Counter(
            "vllm:request_success",
            "Finished requests, by finish reason.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        for reason in ("stop", "length", "abort", "error"):
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
        full_name = name if ":" in name else f"vllm:{name}"
        histogram = Histogram(full_name, f"Histogram: {meaning}.", _LABELS, registry=self._registry, buckets=buckets)
        child: Histogram = histogram.labels(**self._labels)
        return child
