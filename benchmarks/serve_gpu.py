"""Measures the loads of `benchmarks/h200.md` through HTTP: `facet bench serve` against servers with random weights.

    python -m benchmarks.serve_gpu [--rows e4b-8k-c8 31b-c1 ...] [--repeat 2] [--output results.json] [--compile-first]
    python -m benchmarks.serve_table results.json        # the tables, in Markdown

One server per set of flags, all loads of that server one after the other, each after its own warm-up requests. Results
are saved after every load. `serve_rows.py` has the loads, vLLM's figures and the targets.

`--compile-first` starts servers of all models side by side before anything is measured, as many at a time as the GPU
holds, and ends them when they are ready: their kernels are then compiled. The time that a server takes to be ready is
that of a first start only without it.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.running_server import PORT, bench_serve, running
from benchmarks.serve_rows import BY_NAME, Row, Server
from facet.bundled_model import find_bundled_model
from facet.model.families import read_model_spec
from facet.model.weight_formats import weight_bytes
from tests.published_configs import text_only

# Of the GPU, and of each server that only compiles, beside its weights.
GPU_BYTES, BESIDE_WEIGHTS = 125 << 30, 8 << 30
SMALL_CACHE = ("--kv-cache-memory-bytes", str(4 << 30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(BY_NAME), default=list(BY_NAME), metavar="ROW")
    parser.add_argument("--repeat", type=int, default=1, help="times that each row is measured, in one server")
    parser.add_argument("--output", type=Path, help="where results go, as JSON")
    parser.add_argument("--compile-first", action="store_true", help="compile the kernels of all models side by side")
    parser.add_argument("--temperature", type=float, default=None, help="default: the server's, which is 1")
    parser.add_argument("--serve-flags", nargs=argparse.REMAINDER, default=[], help="further flags of every server")
    options = parser.parse_args()
    chosen = [BY_NAME[name] for name in BY_NAME if name in options.rows]
    servers = list(dict.fromkeys(row.server for row in chosen))
    if options.compile_first:
        compile_kernels(servers, options.serve_flags)
    results: dict[str, list[dict[str, Any]]] = {row.name: [] for row in chosen}
    for server in servers:
        with serving(server, options.serve_flags) as seconds:
            print(f"{server.title}: ready after {seconds:.1f} s", flush=True)
            for row in (row for row in chosen if row.server is server):
                for _ in range(options.repeat):
                    result = measure(row, options.temperature)
                    results[row.name].append(result)
                    print(f"  {row.name}: {figures(row, result)}", flush=True)
                    if options.output:
                        options.output.write_text(json.dumps(results, indent=1))
    table = Table(title="through HTTP")
    for column in ("load", "Facet", "vLLM 0.26.0", "target"):
        table.add_column(column, no_wrap=True)
    for row in chosen:
        measured = "\n".join(figures(row, result) for result in results[row.name])
        table.add_row(row.name, measured, *(known(row, kind) for kind in ("vllm", "target")))
    Console(width=140).print(table)


def figures(row: Row, result: dict[str, Any]) -> str:
    failed = f" ({result['failed']} FAILED)" if result["failed"] else ""
    if not result["completed"]:
        return f"no request was answered{failed}"
    return ", ".join(f"{figure.written(figure.of(result))} {figure.unit}" for figure in row.figures) + failed


def known(row: Row, kind: str) -> str:
    values = ((figure, getattr(figure, kind)) for figure in row.figures)
    return ", ".join(f"{figure.written(value)} {figure.unit}" for figure, value in values if value is not None)


def compile_kernels(servers: Sequence[Server], more_flags: Sequence[str]) -> None:
    """Into Triton's cache on disk."""
    for group in groups_that_fit(list(dict.fromkeys(server.model for server in servers))):
        print(f"compiling for {', '.join(group)}", flush=True)
        with ThreadPoolExecutor(len(group)) as pool:
            list(pool.map(partial(start_and_end, more_flags), count(PORT + 1), group))


def groups_that_fit(models: Sequence[str]) -> list[list[str]]:
    """Models whose servers the GPU holds at a time, the largest first."""
    sizes = {
        model: weight_bytes(read_model_spec(text_only(model)), {}, dtype=torch.bfloat16).total + BESIDE_WEIGHTS
        for model in models
    }
    groups: list[list[str]] = []
    for model in sorted(models, key=lambda model: -sizes[model]):
        for group in groups:
            if sum(sizes[other] for other in group) + sizes[model] <= GPU_BYTES:
                group.append(model)
                break
        else:
            groups.append([model])
    return groups


def start_and_end(more_flags: Sequence[str], port: int, model: str) -> None:
    server = Server(model, 9216)
    with serving(server, [*more_flags, *SMALL_CACHE], port):
        pass


@contextmanager
def serving(server: Server, more_flags: Sequence[str], port: int = PORT) -> Iterator[float]:
    """A server with random weights; yields how many seconds it took from its command to being ready."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(text_only(server.model)))
        if server.has_tokenizer:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(find_bundled_model() / name, folder)
        flags = (
            "--no-enable-prefix-caching", "--max-num-seqs", "128", "--max-num-batched-tokens", "8192",
            "--max-model-len", str(server.max_model_len), "--dtype", "bfloat16",
        )  # fmt: skip
        with running(folder, *flags, *server.flags, *more_flags, port=port) as seconds:
            yield seconds


def measure(row: Row, temperature: float | None) -> dict[str, Any]:
    return bench_serve(
        "--dataset-name", "random", "--random-input-len", str(row.input_len), "--random-output-len",
        str(row.output_len), "--num-prompts", str(row.num_prompts), "--max-concurrency", str(row.concurrency),
        "--num-warmups", str(row.num_warmups), "--ignore-eos",
        *(() if temperature is None else ("--temperature", str(temperature))),
        *(() if row.extra_body is None else ("--extra-body", json.dumps(row.extra_body))),
    )  # fmt: skip


if __name__ == "__main__":
    main()
