"""Times decode steps of several models on a GPU.

    python -m benchmarks.steps_gpu "Gemma 4 E4B:1,8,32" "Gemma 4 12B:1" [--adapters 4] [--rank 16] [--output x.json]

A model with its numbers of requests; each model in a process of its own, with random weights. A line says what a step
takes: the median of four runs of 40 steps and the distance of the others. With adapters, which are random too, requests
have one after the other; there is a further line for requests without one.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.step_gpu import drain, submit
from facet.adapter import AdapterSource
from facet.config import EngineConfig
from facet.engine.engine import Engine, make_engine
from facet.model.adapters.matching import adaptable_targets, is_of_experts
from tests.published_configs import text_only
from tests.tiny_adapters import write_adapter

NUM_RUNS, NUM_STEPS = 4, 40
MAX_MODEL_LEN = 2048


@dataclass(frozen=True, slots=True)
class Steps:
    """Of some requests of one model, in milliseconds."""

    num_requests: int
    num_adapters: int
    times: tuple[float, ...]

    def told(self) -> str:
        middle = statistics.median(self.times)
        return f"{middle:.3f} ms (-{middle - min(self.times):.3f}, +{max(self.times) - middle:.3f})"


def time_steps(engine: Engine, num_requests: int, context: int, num_adapters: int = 0) -> Steps:
    num_output = MAX_MODEL_LEN - context
    for index in range(num_requests):
        adapter = f"adapter{index % num_adapters}" if num_adapters else None
        submit(engine, f"request{index}", context, num_output, index, adapter)

    def step(times: int) -> None:
        for _ in range(times):
            engine.step()

    while engine.stats().scheduler.num_waiting or engine.runner.counters.num_sampled_rows == 0:
        step(1)
    step(12 + num_requests * context // 8192)
    times = []
    for _ in range(NUM_RUNS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(NUM_STEPS)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / NUM_STEPS * 1e3)
    for index in range(num_requests):
        engine.cancel(f"request{index}")
    drain(engine)
    return Steps(num_requests, num_adapters, tuple(times))


def load_adapters(engine: Engine, count: int, rank: int, folder: Path) -> None:
    """Random ones, beside all matrices of attention and MLPs."""
    spec = engine.runner.model.spec
    for index in range(count):
        modules = {
            f"model.{name}": (target.shape[0], target.shape[1])
            for name, target in adaptable_targets(spec).items()
            if name.endswith("_proj") and not is_of_experts(target)
        }
        write_adapter(folder / str(index), modules, rank=rank, seed=index, size=0.01)
        engine.load_adapter(AdapterSource(f"adapter{index}", str(folder / str(index))))


def measure(
    model: str, counts: Sequence[int], context: int, invariant: bool, num_adapters: int, rank: int
) -> list[Steps]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(text_only(model)))
        engine, _ = make_engine(
            EngineConfig(
                model=folder,
                load_format="dummy",
                dtype="bfloat16",
                max_model_len=MAX_MODEL_LEN,
                max_num_seqs=max(counts),
                max_num_batched_tokens=8192,
                enable_prefix_caching=False,
                batch_invariant=invariant,
                enable_lora=num_adapters > 0,
                max_loras=num_adapters or None,
                max_lora_rank=rank if num_adapters else None,
            )
        )
        load_adapters(engine, num_adapters, rank, Path(folder))
        kinds = (num_adapters, 0) if num_adapters else (0,)
        return [time_steps(engine, count, context, kind) for count in counts for kind in kinds]


def _send(connection: Connection, *arguments: object) -> None:
    connection.send(measure(*arguments))  # type: ignore[arg-type]


def in_process(*arguments: object) -> list[Steps]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_send, args=(there, *arguments))
    process.start()
    there.close()
    try:
        steps: list[Steps] = here.recv()
    finally:
        process.join()
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL:COUNTS")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--adapters", type=int, default=0)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--no-batch-invariant", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found = []
    for each in options.models:
        model, _, counts = each.rpartition(":")
        arguments = (model, [int(count) for count in counts.split(",")], options.context)
        of_model = in_process(*arguments, not options.no_batch_invariant, options.adapters, options.rank)
        for steps in of_model:
            kind = f", {steps.num_adapters} adapters" * bool(options.adapters)
            print(f"{model}, {steps.num_requests}{kind}: {steps.told()}", flush=True)
        found.append({"model": model, "steps": list(map(asdict, of_model))})
    if options.output:
        options.output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
