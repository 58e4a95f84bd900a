"""Reads the engine's counters and the size of its cache when metrics are collected."""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from facet.config import EngineConfig
from facet.draft_counts import DraftCounts
from facet.engine.messages import CacheInfo, Stats
from facet.server.engine_bridge import EngineBridge
from facet.version import __version__


class EngineMetrics(Collector):
    """What the engine counts. Names begin with `vllm:` where vLLM has the metric, with `facet:` where it has none."""

    def __init__(self, bridge: EngineBridge, config: EngineConfig, labels: Mapping[str, str]) -> None:
        self._bridge = bridge
        self._config = config
        self._names, self._values = list(labels), list(labels.values())

    def describe(self) -> list[Metric]:
        return []  # asked once at registration, when there are no numbers yet

    def collect(self) -> Iterator[Metric]:
        counters, stats = self._bridge.counters, self._bridge.last_stats
        yield self._counter("vllm:prompt_tokens", "Prompt tokens processed.", counters.num_prompt_tokens)
        num_cached = counters.num_cached_prompt_tokens
        yield self._counter("vllm:prompt_tokens_cached", "Prompt tokens found in the cache.", num_cached)
        yield self._prompt_tokens_by_source(counters.num_prompt_tokens - num_cached, num_cached)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", counters.num_generation_tokens)
        yield self._cache_config(self._bridge.info.cache)
        yield InfoMetricFamily("facet:version", "The server's version.", value={"version": __version__})
        yield self._sleep_state()
        if stats is not None:
            yield from self._of_engine(stats)

    def _of_engine(self, stats: Stats) -> Iterator[Metric]:
        yield self._gauge("vllm:num_requests_running", "Running requests.", stats.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Waiting requests.", stats.num_waiting)
        usage = stats.num_blocks_in_tables / max(1, stats.num_blocks)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of cache blocks that running requests hold.", usage)
        cached = stats.num_blocks_cached / max(1, stats.num_blocks)
        yield self._gauge("facet:kv_cache_cached_perc", "Share of cache blocks kept for prefixes.", cached)
        yield self._blocks_by_kind(stats)
        yield self._counter("vllm:num_preemptions", "Preemptions for lack of memory.", stats.num_preemptions)
        yield self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", stats.num_prompt_tokens)
        yield self._counter("vllm:prefix_cache_hits", "Prompt tokens found.", stats.num_prompt_tokens_hit)
        corrupted = stats.num_corrupted_requests
        yield self._counter(
            "vllm:corrupted_requests", "Requests ended because their logits were not finite.", corrupted
        )
        if stats.drafts.num_runs:
            yield from self._of_drafts(stats.drafts)
        yield self._counter("facet:num_steps", "Steps of the engine.", stats.num_steps)
        yield self._counter(
            "facet:computed_tokens", "Tokens computed, of prompts and answers.", stats.num_computed_tokens
        )
        yield self._step_sizes(stats)
        if self._config.max_step_ms is not None:
            short, long = "Steps with less of a prompt, to keep to --max-step-ms.", "Steps beyond --max-step-ms."
            yield self._counter("facet:short_steps", short, stats.num_short_steps)
            yield self._counter("facet:long_steps", long, stats.num_long_steps)

    def _prompt_tokens_by_source(self, num_computed: int, num_cached: int) -> Metric:
        family = CounterMetricFamily(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens, by where their keys and values came from.",
            labels=[*self._names, "source"],
        )
        family.add_metric([*self._values, "local_compute"], num_computed)
        family.add_metric([*self._values, "local_cache_hit"], num_cached)
        return family

    def _sleep_state(self) -> Metric:
        """The sleep state as vLLM says it: 1 for the state that the engine is in."""
        family = GaugeMetricFamily(
            "vllm:engine_sleep_state",
            "Whether the model is awake, or how it sleeps.",
            labels=[*self._names, "sleep_state"],
        )
        for level, name in enumerate(("awake", "weights_offloaded", "discard_all")):
            family.add_metric([*self._values, name], float(level == self._bridge.sleep_level))
        return family

    def _of_drafts(self, drafts: DraftCounts) -> Iterator[Metric]:
        yield self._counter("vllm:spec_decode_num_drafts", "Runs of drafts verified.", drafts.num_runs)
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", drafts.num_drafts)
        yield self._counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens accepted.", drafts.num_accepted)
        family = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens accepted, by their place in the run.",
            labels=[*self._names, "position"],
        )
        for place, count in enumerate(drafts.num_accepted_by_place):
            family.add_metric([*self._values, str(place)], count)
        yield family

    def _step_sizes(self, stats: Stats) -> Metric:
        family = HistogramMetricFamily(
            "vllm:iteration_tokens_total", "Histogram: tokens computed in a step.", labels=self._names
        )
        bounds = [str(float(bound)) for bound, _ in stats.num_steps_by_size]
        num_within = accumulate(count for _, count in stats.num_steps_by_size)
        buckets = [*zip(bounds, num_within, strict=True), ("+Inf", stats.num_steps)]
        family.add_metric(self._values, buckets, sum_value=stats.num_computed_tokens)
        return family

    def _cache_config(self, cache: CacheInfo) -> Metric:
        """A gauge that is always 1, as vLLM's is: what it says is in its labels."""
        config = self._config
        labels = {
            "block_size": min((size for _, size in cache.tokens_per_block), default=0),
            "cache_dtype": config.kv_cache_dtype,
            "enable_prefix_caching": config.enable_prefix_caching,
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "kv_cache_memory_bytes": cache.num_blocks * cache.block_bytes,
            "num_gpu_blocks": cache.num_blocks,
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "The size and kind of the cache.", labels=[*labels, *self._names]
        )
        family.add_metric([*map(str, labels.values()), *self._values], 1)
        return family

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
        family = GaugeMetricFamily(name, meaning, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, meaning: str, value: float) -> Metric:
        family = CounterMetricFamily(name, meaning, labels=self._names)
        family.add_metric(self._values, value)
        return family
