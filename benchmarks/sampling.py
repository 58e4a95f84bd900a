"""Times a sampling step, from logits to token ids, for a vocabulary of Gemma's size.

    python -m benchmarks.sampling                  # CPU
    python -m benchmarks.sampling --device cuda    # a GPU: the kernels, beside torch's own operations

A step is `Sampler.sample`, `Sampler.accept` and `start_copy` for a batch that stays the same, as in decoding. Logits
look like a language model's: a few likely tokens over a wide floor. The floor is the time to read the logits once at
the bandwidth measured in the same run; a step that edits logits is given fresh ones, and the copy is not counted.

On a GPU, *device* is the time of the step's kernels alone: they queue up behind a long one, so that the host is never
waited for. (Where a step itself makes the host wait, as torch's own way with top_p alone does, it holds that too.)
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    "top_p 0.9 alone": {"top_p": 0.9},
    "temperature alone": {},
    "min_p 0.05 alone": {"min_p": 0.05},
}
NUM_PROMPT_TOKENS = 2048


# Longer than the host needs to queue a step, in clock cycles of a GPU.
HEAD_START_CYCLES = 10_000_000


@dataclass(frozen=True, slots=True)
class Timing:
    step_ms: float  # until the token ids are there
    host_ms: float  # until the host may go on; on a CPU the same
    device_ms: float  # the kernels alone; on a CPU the same as a step


@dataclass(frozen=True, slots=True)
class Measured:
    timing: Timing
    token_ids: list[list[int]]  # of every step, to compare ways of choosing


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
    step_ms = statistics.median(steps[2:]) * 1e3
    device_ms = time_on_device(call, prepare, rounds) if device.type == "cuda" else step_ms
    return Timing(step_ms, statistics.median(hosts[2:]) * 1e3, device_ms)


def time_on_device(call: Callable[[], object], prepare: Callable[[], object], rounds: int) -> float:
    times: list[float] = []
    for _ in range(rounds):
        prepare()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second of one large reduction."""
    data = torch.zeros(2**26, device=device)
    timing = time_calls(lambda: data.amax(), lambda: None, device, rounds=7)
    return data.nbytes / timing.device_ms * 1e3


def measure(
    settings: dict[str, Any],
    logits: torch.Tensor,
    device: torch.device,
    rounds: int,
    *,
    uses_kernels: bool,
) -> Measured:
    num_rows, vocab_size = logits.shape
    sampler = Sampler(num_seats=num_rows, vocab_size=vocab_size, device=device, uses_kernels=uses_kernels)
    generator = torch.Generator().manual_seed(1)
    seats = list(range(num_rows))
    for seat in seats:
        prompt = torch.randint(vocab_size, (NUM_PROMPT_TOKENS,), generator=generator).tolist()
        sampler.add_request(seat, SamplingParams(**settings, seed=seat, max_tokens=None), prompt)
    own_logits = logits.clone()
    sampled_ids = []

    def step() -> None:
        sampled = sampler.sample(own_logits, seats)
        sampler.accept(seats, sampled.token_ids)
        sampled.start_copy()
        sampled_ids.append(sampled.token_ids)

    timing = time_calls(step, lambda: own_logits.copy_(logits), device, rounds)
    return Measured(timing, [token_ids.tolist() for token_ids in sampled_ids])


def num_different(one: Measured, other: Measured) -> int:
    """Tokens; without penalties a row's differing token changes none of its later ones."""
    pairs = zip(one.token_ids, other.token_ids, strict=True)
    return sum(a != b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))


def run_on_cpu(arguments: argparse.Namespace, dtype: torch.dtype) -> Table:
    device = torch.device("cpu")
    bandwidth = read_bandwidth(device)
    table = Table(title=f"Sampling, {dtype}, {torch.get_num_threads()} threads, reads {bandwidth / 1e9:,.0f} GB/s")
    add_columns(table, "rows", "ms per step", "floor ms")
    for name, settings in CASES.items():
        for num_rows in arguments.batch:
            logits = make_logits(num_rows, arguments.vocab_size, dtype, device)
            timing = measure(settings, logits, device, arguments.rounds, uses_kernels=False).timing
            floor_ms = logits.nbytes / bandwidth * 1e3
            table.add_row(name, str(num_rows), f"{timing.step_ms:.3f}", f"{floor_ms:.3f}")
        table.add_section()
    return table


def run_on_gpu(arguments: argparse.Namespace, dtype: torch.dtype) -> Table:
    device = torch.device("cuda")
    bandwidth = read_bandwidth(device)
    name_of_gpu = torch.cuda.get_device_name(device)
    table = Table(
        title=f"Sampling, ms, torch's operations -> kernels; {dtype}, {name_of_gpu}, reads {bandwidth / 1e9:,.0f} GB/s"
    )
    add_columns(table, "rows", "host", "", "device", "", "step", "", "floor", "tokens that differ")
    for name, settings in CASES.items():
        for num_rows in arguments.batch:
            logits = make_logits(num_rows, arguments.vocab_size, dtype, device)
            old, new = (
                measure(settings, logits, device, arguments.rounds, uses_kernels=uses_kernels)
                for uses_kernels in (False, True)
            )
            pairs = [
                (getattr(old.timing, field), getattr(new.timing, field))
                for field in ("host_ms", "device_ms", "step_ms")
            ]
            times = [f"{time_ms:.3f}" for pair in pairs for time_ms in pair]
            floor_ms = logits.nbytes / bandwidth * 1e3
            num_tokens = len(new.token_ids) * num_rows
            table.add_row(name, str(num_rows), *times, f"{floor_ms:.3f}", f"{num_different(old, new)} of {num_tokens}")
        table.add_section()
    return table


def add_columns(table: Table, *names: str) -> None:
    table.add_column("settings", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--vocab-size", type=int, default=262_144)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, help="of the CPU; fewer than it has, on a machine that is shared")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    run = run_on_gpu if arguments.device == "cuda" else run_on_cpu
    Console(width=120).print(run(arguments, dtype))


if __name__ == "__main__":
    main()
