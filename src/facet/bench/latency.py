"""`facet bench latency`: runs one batch repeatedly through an engine in this process and times it."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from facet.bench.offline_config import LatencyConfig, check_context
from facet.bench.random_prompts import DEFAULT_VOCAB_SIZE, RandomTokens
from facet.bench.result_file import write_result
from facet.progress import Bars, Progress, Silent

if TYPE_CHECKING:  # the engine is handed in: this room needs no torch
    from facet.offline.timed import TimedLLM

EXIT_SOME_FAILED = 1
PERCENTAGES = (10, 25, 50, 75, 90, 99)


def bench_latency(config: LatencyConfig, llm: "TimedLLM") -> int:
    """The exit code: 0, or 1 if an answer failed and nothing was measured."""
    check_context(config.input_len + config.output_len, llm.max_model_len)
    tokens = RandomTokens(config.seed, min(llm.vocab_size, DEFAULT_VOCAB_SIZE))
    prompts = [tokens.ids(config.input_len).tolist() for _ in range(config.batch_size)]
    sampling = [config.sampling(config.output_len)] * config.batch_size
    bars: Progress = Silent() if config.disable_tqdm else Bars()
    latencies: list[float] = []
    for title, num_iters in (("warm-up", config.num_iters_warmup), ("iterations", config.num_iters)):
        latencies.clear()
        with bars.task(title, num_iters) as advance:
            for _ in range(num_iters):
                run = llm.timed(prompts, sampling)
                if run.errors:
                    print(f"{len(run.errors)} answers failed, the first with: {run.errors[0]}", file=sys.stderr)
                    return EXIT_SOME_FAILED
                latencies.append(run.seconds)
                advance(1)
    # The file first: a terminal that goes away must not cost the result. Nor must a file that cannot be written.
    try:
        if config.output_json is not None:
            write_result(Path(config.output_json), latency_result(latencies))
    finally:
        print("\n".join(latency_lines(latencies)))
    return 0


def latency_lines(latencies: Sequence[float]) -> Iterator[str]:
    """The lines of `vllm bench latency`."""
    result = latency_result(latencies)
    yield f"Avg latency: {result['avg_latency']} seconds"
    yield f"Std latency: {result['std_latency']} seconds"
    for percentage, seconds in result["percentiles"].items():
        yield f"{percentage}% percentile latency: {seconds} seconds"


def latency_result(latencies: Sequence[float]) -> dict[str, Any]:
    """The result under the keys of `vllm bench latency`."""
    return {
        "avg_latency": float(np.mean(latencies)),
        "std_latency": float(np.std(latencies)),
        "latencies": list(latencies),
        "percentiles": {
            str(percentage): float(seconds)
            for percentage, seconds in zip(PERCENTAGES, np.percentile(latencies, PERCENTAGES), strict=True)
        },
    }
