"""Measures two replicas on one GPU against one server with all of it: a load of single prompts, and sessions.

    python -m benchmarks.replicas_gpu [--model "Gemma 4 E2B"] [--output results.json]

Replicas share the card, so they cannot compute more than one server; this shows what dividing it costs, and that the
router keeps sessions where their prefixes are.
"""

import argparse
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.running_server import URL, bench_serve
from benchmarks.serve_gpu import serving
from benchmarks.serve_rows import Server

SERVERS: dict[str, tuple[str, ...]] = {
    "one server": (),
    "two replicas on one card": ("--data-parallel-size", "2", "--gpu-memory-utilization", "0.45"),
}
LOADS: dict[str, tuple[str, ...]] = {
    "random": ("--dataset-name", "random", "--random-input-len", "1024", "--random-output-len", "128", "--num-prompts",
               "128", "--max-concurrency", "32", "--num-warmups", "8", "--ignore-eos"),
    "sessions": ("--dataset-name", "sessions", "--num-prompts", "24", "--num-turns", "5", "--random-input-len", "2048",
                 "--random-output-len", "64", "--max-concurrency", "24", "--num-warmups", "0"),
}  # fmt: skip


def hit_rate() -> float:
    """The share of prompt tokens found in caches, of all replicas since their start."""
    with urllib.request.urlopen(f"{URL}/metrics") as answer:
        text = answer.read().decode()
    hits, queries = (
        sum(
            float(value) for value in re.findall(rf"^vllm:prefix_cache_{name}_total\{{.*\}} (\S+)$", text, re.MULTILINE)
        )
        for name in ("hits", "queries")
    )
    return hits / max(1.0, queries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Gemma 4 E2B")
    parser.add_argument("--output", type=Path, help="where all results go, as JSON")
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    table = Table(title=f"{options.model} on one GPU")
    for column in ("", "load", "output tokens/s", "mean TTFT, ms", "mean TPOT, ms", "prefix hits", "failed"):
        table.add_column(column, justify="left" if column in ("", "load") else "right")
    for name, flags in SERVERS.items():
        shared = ("--skip-tokenizer-init", "--enable-prefix-caching")
        with serving(Server(options.model, 8192, (*shared, *flags)), []) as seconds:
            print(f"{name}: ready after {seconds:.1f} s", flush=True)
            for load, settings in LOADS.items():
                result = bench_serve(*settings)
                results[f"{name}, {load}"] = result
                figures = (result[key] for key in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms"))
                shown = (*(f"{figure:,.1f}" for figure in figures), f"{hit_rate():.1%}", str(result["failed"]))
                print(f"  {load}: {', '.join(shown)}", flush=True)
                table.add_row(name, load, *shown)
        if options.output:
            options.output.write_text(json.dumps(results, indent=1))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
