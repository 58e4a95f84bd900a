"""Writes the result as JSON with the keys of `vllm bench serve`, so that files of both can be compared."""

import dataclasses
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from facet.bench.config import BenchConfig
from facet.bench.metrics import Metrics
from facet.bench.outcome import Outcome
from facet.bench.table import percentile_word
from facet.bench.writable import check_writable
from facet.draft_counts import DraftCounts
from facet.errors import ConfigError


def make_result(
    config: BenchConfig, model: str, metrics: Metrics, outcomes: Sequence[Outcome], drafts: DraftCounts
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": config.backend,
        "backend": config.backend,
        "label": config.label,
        "model_id": model,
        "tokenizer_id": config.tokenizer,
        "num_prompts": config.num_prompts,
        "dataset_name": config.dataset_name,
        **{name.strip(): value.strip() for name, _, value in (pair.partition("=") for pair in config.metadata)},
        "request_rate": "inf" if math.isinf(config.request_rate) else config.request_rate,
        "burstiness": config.burstiness,
        "max_concurrency": config.max_concurrency,
        "duration": metrics.duration,
        "completed": metrics.num_completed,
        "failed": metrics.num_failed,
        "failures": dict(metrics.failures),
        "answers_without_usage": metrics.num_without_usage,
        "total_input_tokens": metrics.num_input_tokens,
        "total_cached_tokens": metrics.num_cached_tokens,
        "total_output_tokens": metrics.num_output_tokens,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_throughput,
        "max_output_tokens_per_s": metrics.peak_output_throughput,
        "max_concurrent_requests": metrics.peak_concurrent_requests,
    }
    if config.ramp_up_strategy is not None:
        result |= {name: getattr(config, name) for name in _RAMP_FIELDS}
    for name, distribution in metrics.distributions.items():
        result[f"mean_{name}_ms"] = distribution.mean
        result[f"median_{name}_ms"] = distribution.median
        result[f"std_{name}_ms"] = distribution.std
        for percentile, value in distribution.percentiles:
            result[f"p{percentile_word(percentile)}_{name}_ms"] = value
    if drafts.num_runs:
        result |= {
            "spec_decode_acceptance_rate": 100 * drafts.num_accepted / max(1, drafts.num_drafts),
            "spec_decode_acceptance_length": 1 + drafts.num_accepted / drafts.num_runs,
            "spec_decode_num_drafts": drafts.num_runs,
            "spec_decode_draft_tokens": drafts.num_drafts,
            "spec_decode_accepted_tokens": drafts.num_accepted,
            "spec_decode_per_position_acceptance_rates": [
                count / drafts.num_runs for count in drafts.num_accepted_by_place
            ],
        }
    if config.save_detailed:
        result |= _details(outcomes)
    result["settings"] = {
        field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name not in _SECRETS
    }
    return result


def result_path(config: BenchConfig, model: str, now: datetime) -> Path:
    name = config.result_filename
    if name is None:
        concurrency = "" if config.max_concurrency is None else f"-concurrency{config.max_concurrency}"
        if config.ramp_up_strategy is None:
            rate = f"{config.request_rate}qps"
        else:
            rate = f"ramp-up-{config.ramp_up_strategy}-{config.ramp_up_start_rps}qps-{config.ramp_up_end_rps}qps"
        label = config.label or config.backend
        name = f"{label}-{rate}{concurrency}-{Path(model).name}-{now:%Y%m%d-%H%M%S}.json"
    return Path(config.result_dir or ".") / name


def check_result_file(config: BenchConfig) -> None:
    """Checks before the run that results can be written. Where the file is named by the model, any name tells whether
    its folder can be written to."""
    if config.save_result:
        flag = "--save-result" if config.result_dir is None else "--result-dir"
        check_writable(flag, result_path(config, "model", datetime.now()), makes_folder=True)


def write_result(path: Path, result: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    except OSError as error:
        raise ConfigError(f"The result cannot be written to {path}: {error.strerror}.") from None


_RAMP_FIELDS = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
_SECRETS = ("api_key", "header")  # result files are passed around


def _details(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "input_lens": [outcome.num_prompt_tokens for outcome in outcomes],
        "output_lens": [outcome.num_output_tokens for outcome in outcomes],
        "ttfts": [outcome.ttft for outcome in outcomes],
        "itls": [outcome.itls.tolist() for outcome in outcomes],
        "latencies": [outcome.latency for outcome in outcomes],
        "start_times": [outcome.start for outcome in outcomes],
        "queue_times": [outcome.start - outcome.arrival for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [
            f"{outcome.failure.kind}: {outcome.failure.message}" if outcome.failure else "" for outcome in outcomes
        ],
    }
