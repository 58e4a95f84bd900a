"""Measures the cost of --batch-invariant: a decode step and a prompt, with it and without, as ratios.

    python -m benchmarks.batch_invariant                                        # a small model on a CPU, float32
    python -m benchmarks.batch_invariant --device cuda --model "Gemma 4 E4B"    # a real shape on a GPU, bfloat16

Random weights; the engine runs in this process. Both engines also run the same request alone and among others, and
its log-probabilities are compared bit for bit: they must be the same with the flag, and need not be without.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks.random_models import SHAPES
from facet.config import EngineConfig
from facet.engine.engine import Engine, make_engine
from facet.request import Request
from facet.sampling_params import SamplingParams
from tests.published_configs import text_only

NUM_STEPS = 20
NUM_WARM_PROMPTS, NUM_PROMPTS = 2, 8
KV_BYTES = 4 << 30  # plenty for these loads, and room for the second engine while the first is still going
QUESTION_TOKENS = 700


def submit(engine: Engine, name: str, num_tokens: int, num_output: int, seed: int) -> None:
    vocab_size = engine.runner.model.spec.vocab_size
    token_ids = np.random.default_rng(seed).integers(3, vocab_size - 3, num_tokens)
    engine.submit(
        Request(
            request_id=name,
            prompt_token_ids=tuple(token_ids.tolist()),
            eos_token_ids=(),
            sampling=SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True, logprobs=1),
        )
    )


def drain(engine: Engine) -> dict[str, list[list[float]]]:
    """The log-probabilities of every answer."""
    answers: dict[str, list[list[float]]] = {}
    while engine.has_work:
        for event in engine.step():
            answers.setdefault(event.request_id, []).extend(token.logprobs for token in event.logprobs or ())
    return answers


def synchronize(engine: Engine) -> None:
    if engine.runner.model.placement.device.type == "cuda":
        torch.cuda.synchronize()


def time_decode(engine: Engine, num_requests: int, context: int) -> float:
    """Seconds of a step, the median."""
    names = [f"decode{index}" for index in range(num_requests)]
    for index, name in enumerate(names):
        submit(engine, name, context, 10 * NUM_STEPS, index)
    while engine.stats().scheduler.num_waiting or engine.stats().scheduler.num_running < num_requests:
        engine.step()
    for _ in range(10 + num_requests):
        engine.step()
    seconds = []
    for _ in range(NUM_STEPS):
        synchronize(engine)
        start = time.perf_counter()
        engine.step()
        synchronize(engine)
        seconds.append(time.perf_counter() - start)
    for name in names:
        engine.cancel(name)
    drain(engine)
    return statistics.median(seconds)


def time_prefill(engine: Engine, num_tokens: int) -> float:
    seconds = []
    for seed in range(NUM_WARM_PROMPTS + NUM_PROMPTS):
        submit(engine, f"prompt{seed}", num_tokens, 1, seed)
        synchronize(engine)
        start = time.perf_counter()
        drain(engine)
        synchronize(engine)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[NUM_WARM_PROMPTS:])


def is_same_in_company(engine: Engine) -> bool:
    submit(engine, "question", QUESTION_TOKENS, 12, 100)
    alone = drain(engine)["question"]
    for index in range(7):
        submit(engine, f"other{index}", 40 + 130 * index, 6 + index, 200 + index)
        engine.step()
    submit(engine, "question", QUESTION_TOKENS, 12, 100)
    return drain(engine)["question"] == alone


def show_kernels(engine: Engine, context: int, num_tokens: int, console: Console) -> None:
    for title, num_requests, prompt in (("decode, 8 requests", 8, context), ("prefill", 1, num_tokens)):
        for index in range(num_requests):
            submit(engine, f"profiled{index}", prompt, 20, index)
        if num_requests > 1:
            while engine.stats().scheduler.num_waiting or engine.stats().scheduler.num_running < num_requests:
                engine.step()
            for _ in range(4):
                engine.step()
        synchronize(engine)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            engine.step()
            synchronize(engine)
        console.print(title)
        averages = profiler.key_averages()
        for event in sorted(averages, key=lambda event: -event.device_time_total)[:10]:
            console.print(f"  {event.device_time_total:9.0f} µs {event.count:5d}  {event.key[:70]}")
        drain(engine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--model", default="e4b", help=f"{', '.join(SHAPES)}, or a published model such as Gemma 4 E4B")
    parser.add_argument("--decode", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prefill", type=int, default=2048)
    parser.add_argument("--kernels", action="store_true", help="on a GPU: which kernels take the time, with the flag")
    options = parser.parse_args()
    console = Console(width=120)
    config = SHAPES[options.model] if options.model in SHAPES else text_only(options.model)
    rows: dict[str, list[float]] = {}
    same: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        for batch_invariant in (False, True):
            start = time.perf_counter()
            engine, _ = make_engine(
                EngineConfig(
                    model=folder,
                    load_format="dummy",
                    dtype="bfloat16" if options.device == "cuda" else "float32",
                    device=options.device,
                    max_model_len=max(options.prefill, options.context, 1024) + 512,
                    max_num_seqs=max(options.decode),
                    enable_prefix_caching=False,
                    kv_cache_memory_bytes=KV_BYTES,
                    batch_invariant=batch_invariant,
                )
            )
            console.print(f"engine ready in {time.perf_counter() - start:.1f} s")
            for count in options.decode:
                name = f"decode step of {count}, contexts of {options.context} (ms)"
                rows.setdefault(name, []).append(time_decode(engine, count, options.context))
            name = f"prompt of {options.prefill} (ms)"
            rows.setdefault(name, []).append(time_prefill(engine, options.prefill))
            same.append(is_same_in_company(engine))
            if batch_invariant and options.kernels:
                show_kernels(engine, options.context, options.prefill, console)
            del engine
            gc.collect()
            torch.cuda.empty_cache()
    table = Table(title=f"{options.model} on {options.device}", title_justify="left")
    for column in ("", "usual", "batch-invariant", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for name, (usual, invariant) in rows.items():
        table.add_row(name, f"{usual * 1e3:.2f}", f"{invariant * 1e3:.2f}", f"{invariant / usual:.2f}")
    table.add_row("same bits alone and among 8", *("yes" if is_same else "no" for is_same in same), "")
    console.print(table)


if __name__ == "__main__":
    main()
