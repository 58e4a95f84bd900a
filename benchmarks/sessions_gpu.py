"""Measures long sessions at once and one after the other: four of 65,536 tokens, five turns each, through HTTP.

    python -m benchmarks.sessions_gpu [--model "Gemma 4 31B"] [--input-len 65536] [--num-sessions 4] [--num-turns 5]

Each turn is sent with the whole history, which a prefix cache finds again. The same load goes to three servers with
random weights: one that runs all sessions at once; one with `--max-num-seqs 1` and the same memory, where sessions wait
for each other but keep their keys; and one with memory for a single session, which is where an engine ends up that
charges sliding windows for whole contexts: every turn of a session finds its keys gone and computes them anew.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.running_server import bench_serve
from benchmarks.serve_gpu import serving
from benchmarks.serve_rows import Server

AT_ONCE, WAITING, FORGETTING = "at once", "one at a time", "one at a time, memory for one"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Gemma 4 31B")
    parser.add_argument("--input-len", type=int, default=65_536)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--num-sessions", type=int, default=4)
    parser.add_argument("--num-turns", type=int, default=5)
    parser.add_argument("--max-model-len", type=int, default=70_000)
    parser.add_argument(
        "--bytes-for-one",
        type=int,
        default=10_500_000_000,
        help="a session of 70,000 tokens and a step of 8192 of the 31B model; 0: without the third server",
    )
    parser.add_argument("--output", type=Path, help="where all results go, as JSON")
    options = parser.parse_args()
    limits: dict[str, tuple[str, ...]] = {
        AT_ONCE: ("--max-num-seqs", str(options.num_sessions)),
        WAITING: ("--max-num-seqs", "1"),
    }
    if options.bytes_for_one:
        limits[FORGETTING] = (*limits[WAITING], "--kv-cache-memory-bytes", str(options.bytes_for_one))
    results = {}
    for name, flags in limits.items():
        with serving(Server(options.model, options.max_model_len, ("--enable-prefix-caching", *flags)), []) as seconds:
            print(f"{name}: ready after {seconds:.1f} s", flush=True)
            results[name] = measure(options)
            print(f"  {results[name]['duration']:.1f} s", flush=True)
        if options.output:
            options.output.write_text(json.dumps(results, indent=1))
    show(results, options.num_sessions)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    return bench_serve(
        "--dataset-name", "sessions", "--num-prompts", str(options.num_sessions), "--num-turns",
        str(options.num_turns), "--random-input-len", str(options.input_len), "--random-output-len",
        str(options.output_len), "--max-concurrency", str(options.num_sessions), "--num-warmups", "0",
    )  # fmt: skip


def show(results: dict[str, dict[str, Any]], num_sessions: int) -> None:
    table = Table(title=f"{num_sessions} sessions")
    for column in ("", "s", "times as long", "mean TTFT, ms", "mean TPOT, ms", "failed"):
        table.add_column(column, justify="right")
    for name, result in results.items():
        figures = (f"{result[key]:,.1f}" for key in ("mean_ttft_ms", "mean_tpot_ms"))
        ratio = result["duration"] / results[AT_ONCE]["duration"]
        table.add_row(name, f"{result['duration']:.1f}", f"{ratio:.2f}", *figures, str(result["failed"]))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
