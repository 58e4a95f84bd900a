"""Long sessions side by side and one after the other: four of 65,536 tokens, five turns each, through HTTP.

    python benchmarks/sessions_gpu.py [--model "Gemma 4 31B"] [--input-len 65536] [--num-sessions 4] [--num-turns 5]

Each turn is sent with the whole history, which a prefix cache finds again. The same load goes to a server that runs all
sessions at once and to one with `--max-num-seqs 1`, both with random weights; the ratio of their times is the point. A
server that charges sliding windows for whole contexts has no room for four such sessions, and is the second of the two
whatever it is told.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.serve_gpu import Server, bench_serve, running


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Gemma 4 31B")
    parser.add_argument("--input-len", type=int, default=65_536)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--num-sessions", type=int, default=4)
    parser.add_argument("--num-turns", type=int, default=5)
    parser.add_argument("--max-model-len", type=int, default=131_072)
    parser.add_argument("--output", type=Path, help="where all results go, as JSON")
    options = parser.parse_args()
    results = {}
    for max_num_seqs in (options.num_sessions, 1):
        flags = ("--enable-prefix-caching", "--max-num-seqs", str(max_num_seqs))
        with running(Server(options.model, options.max_model_len, flags), []) as seconds:
            print(f"--max-num-seqs {max_num_seqs}: ready after {seconds:.1f} s", flush=True)
            results[max_num_seqs] = measure(options)
            print(f"  {results[max_num_seqs]['duration']:.1f} s", flush=True)
    show(results, options.num_sessions)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    return bench_serve(
        "--dataset-name", "sessions", "--num-prompts", str(options.num_sessions), "--num-turns",
        str(options.num_turns), "--random-input-len", str(options.input_len), "--random-output-len",
        str(options.output_len), "--max-concurrency", str(options.num_sessions), "--num-warmups", "0",
    )  # fmt: skip


def show(results: dict[int, dict[str, Any]], num_sessions: int) -> None:
    table = Table(title=f"{num_sessions} sessions")
    for column in ("--max-num-seqs", "s", "mean TTFT, ms", "mean TPOT, ms", "failed"):
        table.add_column(column, justify="right")
    for max_num_seqs, result in results.items():
        figures = (f"{result[name]:,.1f}" for name in ("duration", "mean_ttft_ms", "mean_tpot_ms"))
        table.add_row(str(max_num_seqs), *figures, str(result["failed"]))
    console = Console(width=100)
    console.print(table)
    console.print(
        f"one after the other takes {results[1]['duration'] / results[num_sessions]['duration']:.2f}x as long"
    )


if __name__ == "__main__":
    main()
