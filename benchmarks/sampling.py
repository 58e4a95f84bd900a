"""Milliseconds per sampling step, logits to token ids, for a Gemma-sized vocabulary.

    python benchmarks/sampling.py                                   # CPU, float32
    python benchmarks/sampling.py --device cuda --dtype bfloat16    # a GPU, as a model gives logits there

A step is `Sampler.sample` and `Sampler.accept` for a batch that stays the same, as in decoding. Logits look like a
language model's: a few likely tokens over a wide floor. The floor is the time to read the logits once at the
bandwidth measured in the same run; a step that edits logits is given fresh ones, and the copy is not counted.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from facet.sampling import Sampler
from facet.sampling_params import SamplingParams

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "top_k 64, top_p 0.95": {"top_k": 64, "top_p": 0.95},  # what Gemma's checkpoints ask for
    "the same, penalties": {
        "top_k": 64,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
    },
    "the same, 5 logprobs": {"top_k": 64, "top_p": 0.95, "logprobs": 5},
    "top_p 0.95 alone": {"top_p": 0.95},
    "temperature alone": {},
}
NUM_PROMPT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Timing:
    step_ms: float  # until the token ids are there
    host_ms: float  # until the host may go on; on a CPU the same


def make_logits(num_rows: int, vocab_size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(0)
    logits = torch.randn(num_rows, vocab_size, generator=generator, device=device).mul_(2)
    likely = torch.randint(vocab_size, (num_rows, 300), generator=generator, device=device)
    heights = torch.linspace(24, 10, 300, device=device).repeat(num_rows, 1)
    return logits.scatter_(1, likely, heights).to(dtype)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_calls(call: Callable[[], object], prepare: Callable[[], object], device: torch.device, rounds: int) -> Timing:
    steps, hosts = [], []
    for _ in range(rounds + 2):  # the first two warm up
        prepare()
        synchronize(device)
        start = time.perf_counter()
        call()
        hosts.append(time.perf_counter() - start)
        synchronize(device)
        steps.append(time.perf_counter() - start)
    return Timing(statistics.median(steps[2:]) * 1e3, statistics.median(hosts[2:]) * 1e3)


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second of one large reduction."""
    data = torch.zeros(2**26, device=device)
    timing = time_calls(lambda: data.amax(), lambda: None, device, rounds=7)
    return data.nbytes / timing.step_ms * 1e3


def time_case(
    settings: dict[str, Any], num_rows: int, vocab_size: int, dtype: torch.dtype, device: torch.device, rounds: int
) -> Timing:
    sampler = Sampler(num_rows=num_rows, vocab_size=vocab_size, device=device)
    generator = torch.Generator().manual_seed(1)
    rows = list(range(num_rows))
    for row in rows:
        prompt = torch.randint(vocab_size, (NUM_PROMPT_TOKENS,), generator=generator).tolist()
        sampler.add_request(row, SamplingParams(**settings, seed=row, max_tokens=None), prompt)
    source = make_logits(num_rows, vocab_size, dtype, device)
    logits = source.clone()

    def step() -> None:
        sampler.accept(rows, sampler.sample(logits, rows).token_ids)

    return time_calls(step, lambda: logits.copy_(source), device, rounds)


def describe_bound(timing: Timing, floor_ms: float, device: torch.device, settings: dict[str, Any]) -> str:
    host_waits = "top_p" in settings and "top_k" not in settings  # so its time says nothing about launches
    if floor_ms > 0.5 * timing.step_ms:
        return "reading the logits"
    if device.type == "cuda" and host_waits:
        return "launches and one wait"
    if device.type == "cuda" and timing.host_ms > 0.8 * timing.step_ms:
        return "launching kernels"
    return "work on what was read"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--vocab-size", type=int, default=262_144)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="of the CPU; fewer than it has, on a machine that is shared")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)

    bandwidth = read_bandwidth(device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    table = Table(title=f"Sampling, {arguments.dtype}, {where}, reads {bandwidth / 1e9:,.0f} GB/s")
    for column in ("settings", "rows", "ms per step", "host ms", "logits MB", "floor ms", "bound by"):
        justify: Literal["left", "right"] = "left" if column in {"settings", "bound by"} else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for name, settings in CASES.items():
        for num_rows in arguments.batch:
            timing = time_case(settings, num_rows, arguments.vocab_size, dtype, device, arguments.rounds)
            num_bytes = num_rows * arguments.vocab_size * dtype.itemsize
            floor_ms = num_bytes / bandwidth * 1e3
            table.add_row(
                name,
                str(num_rows),
                f"{timing.step_ms:.3f}",
                f"{timing.host_ms:.3f}",
                f"{num_bytes / 1e6:.1f}",
                f"{floor_ms:.3f}",
                describe_bound(timing, floor_ms, device, settings),
            )
        table.add_section()
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
