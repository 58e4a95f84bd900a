"""Profiles one decode step and one prefill step of the engine on a GPU, kernel by kernel.

    python -m benchmarks.step_gpu --model "Gemma 4 E4B" --decode 1 8 100 --context 512 --prefill 8192

For each step: the wall time of a step, the time the device works in it, and the kernels that take most of that, with
how often each ran; before which kernels it waits longest, which is for the host; and with `--host`, what the host does
in a prompt's step. The engine runs in this process with random weights; nothing of HTTP is in these figures.

`--load 8` keeps as many requests of `--context` and 150 tokens going, as `facet bench serve` does, and shows how long
steps take by their rows, and where the device waits.

A kernel may start while the one before it ends: times of kernels then overlap, and add up to more than the device
was busy.
"""

import argparse
import cProfile
import io
import json
import pstats
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from facet.config import EngineConfig
from facet.engine.engine import Engine, make_engine
from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.step import StepPlan
from tests.published_configs import text_only

NUM_KERNELS, NUM_WAITS = 16, 4


def submit(engine: Engine, name: str, num_tokens: int, num_output: int, seed: int, adapter: str | None = None) -> None:
    token_ids = np.random.default_rng(seed).integers(3, 260_000, num_tokens)
    engine.submit(
        Request(
            request_id=name,
            prompt_token_ids=tuple(token_ids.tolist()),
            eos_token_ids=(),
            adapter=adapter,
            sampling=SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True),
        )
    )


def drain(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def decode(engine: Engine, num_requests: int, context: int, console: Console) -> None:
    num_steps = 30
    for index in range(num_requests):
        submit(engine, f"decode{index}", context, engine.settings.max_model_len - context, index)
    while engine.stats().scheduler.num_waiting or engine.runner.counters.num_sampled_rows == 0:
        engine.step()
    for _ in range(12 + num_requests * context // 8192):
        engine.step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(num_steps):
        engine.step()
    torch.cuda.synchronize()
    wall = (time.perf_counter() - start) / num_steps
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(5):
            engine.step()
        torch.cuda.synchronize()
    show(f"decode, {num_requests} x {context}", wall, profiler, 5, console)
    for index in range(num_requests):
        engine.cancel(f"decode{index}")
    drain(engine)


def mixed(engine: Engine, num_requests: int, num_tokens: int, console: Console) -> None:
    """The step in which a prompt comes to requests that decode with contexts as long; the wall time is of it and the
    decode step behind it, which the overlapped order launches before the first is settled."""
    for index in range(num_requests):
        submit(engine, f"beside{index}", num_tokens - 1, engine.settings.max_model_len - num_tokens, index)
    while engine.stats().scheduler.num_waiting:
        engine.step()
    for _ in range(3 + num_requests):
        engine.step()

    def prompt_among_others(name: str) -> None:
        submit(engine, name, num_tokens, 2, 7)
        for _ in range(2):
            engine.step()
        torch.cuda.synchronize()

    prompt_among_others("warm")
    for _ in range(4):
        engine.step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    prompt_among_others("timed")
    wall = time.perf_counter() - start
    for _ in range(4):
        engine.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        prompt_among_others("profiled")
    show(f"prompt of {num_tokens} among {num_requests}", wall, profiler, 1, console)
    for index in range(num_requests):
        engine.cancel(f"beside{index}")
    drain(engine)


def prefill(engine: Engine, num_tokens: int, console: Console, *, profiles_host: bool) -> None:
    for seed in range(2):
        submit(engine, f"warm{seed}", num_tokens, 1, seed)
        drain(engine)
    if profiles_host:
        with cProfile.Profile() as host:
            submit(engine, "host", num_tokens, 1, 6)
            engine.step()
        drain(engine)
        printed = io.StringIO()
        pstats.Stats(host, stream=printed).sort_stats("tottime").print_stats(NUM_KERNELS)
        console.print(f"the host until a prompt of {num_tokens} is launched:", printed.getvalue())
    torch.cuda.synchronize()
    start = time.perf_counter()
    submit(engine, "timed", num_tokens, 1, 7)
    drain(engine)
    torch.cuda.synchronize()
    wall = time.perf_counter() - start
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        submit(engine, "profiled", num_tokens, 1, 8)
        drain(engine)
        torch.cuda.synchronize()
    show(f"prefill of {num_tokens}", wall, profiler, 1, console)


def load(engine: Engine, num_requests: int, context: int, console: Console) -> None:
    """A request for each that ends, none of them in step with another."""
    num_output, name, by_rows = 150, iter(range(1_000_000)), defaultdict[tuple[int, int], list[float]](list)
    learn = engine._scheduler.learn

    def noting(plan: StepPlan, seconds: float) -> None:
        by_rows[int(np.count_nonzero(plan.num_scheduled == 1)), plan.num_tokens].append(seconds)
        learn(plan, seconds)

    def run(num_ended: int) -> None:
        while num_ended:
            for event in engine.step():
                if event.finish_reason is not None:
                    submit(engine, f"load{next(name)}", context, num_output, num_ended)
                    num_ended -= 1

    for index in range(num_requests):
        submit(engine, f"load{next(name)}", context, num_output * (index + 1) // num_requests, index)
    run(2 * num_requests)
    torch.cuda.synchronize()
    engine._scheduler.learn = noting  # type: ignore[method-assign]
    start = time.perf_counter()
    run(3 * num_requests)
    wall = (time.perf_counter() - start) / 3
    engine._scheduler.learn = learn  # type: ignore[method-assign]
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run(num_requests)
        torch.cuda.synchronize()
    show(f"{num_requests} requests of {context} and {num_output} tokens", wall, profiler, 1, console)
    table = Table(title=f"{num_requests / wall:.2f} requests a second", title_justify="left")
    for column in ("rows", "of them decoded", "steps", "ms each", "share"):
        table.add_column(column, justify="right")
    for (num_decoded, num_rows), times in sorted(by_rows.items(), key=lambda item: -sum(item[1]))[:NUM_KERNELS]:
        mean = f"{np.mean(times) * 1e3:.2f} ± {np.std(times) * 1e3:.2f}"
        table.add_row(f"{num_rows}", f"{num_decoded}", f"{len(times)}", mean, f"{sum(times) / wall / 3:.1%}")
    console.print(table)
    for index in range(next(name)):
        engine.cancel(f"load{index}")
    drain(engine)


def longest_waits(events: Sequence[tuple[float, float, str]], num_steps: int) -> list[tuple[str, float]]:
    """Kernels before which the device did nothing, and the microseconds of a step for which it did so."""
    waits: dict[str, float] = defaultdict(float)
    last_end = float("inf")
    for start, end, name in sorted(events):
        waits[name] += max(0.0, start - last_end) / num_steps
        last_end = end if last_end == float("inf") else max(last_end, end)
    return sorted(waits.items(), key=lambda wait: -wait[1])


def covered(intervals: list[tuple[float, float]]) -> float:
    """The time in which at least one of them runs."""
    total, last_end = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, last_end))
        last_end = max(last_end, end)
    return total


def show(title: str, wall: float, profiler: profile, num_steps: int, console: Console) -> None:
    microseconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    intervals, named = [], []
    for event in profiler.events():  # type: ignore[no-untyped-call]
        if event.device_type == DeviceType.CUDA and not event.name.startswith("Memcpy HtoD"):
            microseconds[event.name] += event.device_time / num_steps
            counts[event.name] += 1
            intervals.append((event.time_range.start, event.time_range.end))
            named.append((*intervals[-1], event.name))
    busy = covered(intervals) / num_steps
    total = sum(microseconds.values())
    table = Table(title=f"{title}: {wall * 1e3:.2f} ms a step, device busy {busy / 1e3:.2f} ms", title_justify="left")
    for column in ("kernel", "runs", "µs", "share"):
        table.add_column(column, justify="left" if column == "kernel" else "right", no_wrap=True)
    for name in sorted(microseconds, key=microseconds.__getitem__, reverse=True)[:NUM_KERNELS]:
        share = microseconds[name] / total
        table.add_row(name[:80], f"{counts[name] / num_steps:.0f}", f"{microseconds[name]:.0f}", f"{share:.1%}")
    console.print(table)
    waits = [f"{wait:.0f} µs before {name[:60]}" for name, wait in longest_waits(named, num_steps)[:NUM_WAITS]]
    idle = sum(wait for _, wait in longest_waits(named, num_steps)) / 1e3
    console.print(f"idle {idle:.2f} ms: " + "; ".join(waits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Gemma 4 E4B")
    parser.add_argument("--decode", type=int, nargs="*", default=[1, 8, 100])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prefill", type=int, nargs="*", default=[8192])
    parser.add_argument("--mixed", type=int, nargs="*", default=[], help="prompts of 8192 among so many requests")
    parser.add_argument("--load", type=int, nargs="*", default=[], help="as many requests at a time, one after another")
    parser.add_argument("--host", action="store_true", help="what the host does until a prompt's step is launched")
    parser.add_argument("--all-rows", action="store_true", help="without fast prefill")
    parser.add_argument("--max-model-len", type=int, default=9216)
    parser.add_argument("--quantization", choices=("fp8", "int8", "int4"))
    parser.add_argument("--quantize-head", action="store_true")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--batch-invariant", action="store_true")
    options = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(text_only(options.model)))
        start = time.perf_counter()
        engine, _ = make_engine(
            EngineConfig(
                model=folder,
                load_format="dummy",
                dtype="bfloat16",
                max_model_len=options.max_model_len,
                max_num_seqs=128,
                max_num_batched_tokens=8192,
                enable_prefix_caching=False,
                kv_sharing_fast_prefill=not options.all_rows,
                quantization=options.quantization,
                quantize_head=options.quantize_head,
                kv_cache_dtype=options.kv_cache_dtype,
                batch_invariant=options.batch_invariant,
            )
        )
        console.print(f"{options.model}: engine ready in {time.perf_counter() - start:.1f} s")
        for line in engine.settings.lines():
            console.print(line)
        free, total = torch.cuda.mem_get_info()
        console.print(f"{free / 2**30:.2f} of {total / 2**30:.2f} GiB are free with the engine ready")
        for count in options.decode:
            decode(engine, count, options.context, console)
        for count in options.prefill:
            prefill(engine, count, console, profiles_host=options.host)
        for count in options.mixed:
            mixed(engine, count, 8192, console)
        for count in options.load:
            load(engine, count, options.context, console)


if __name__ == "__main__":
    main()
