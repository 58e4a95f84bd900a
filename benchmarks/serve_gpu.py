"""Measures the table of `benchmarks/h200.md` through HTTP: `facet bench serve` against servers with random weights.

    python -m benchmarks.serve_gpu [--rows e4b-8k-c8 31b-c1 ...] [--repeat 2] [--output results.json]

One server per set of flags, all loads of that server one after the other, each after its own warm-up requests. vLLM's
figures and the targets are printed for comparison; vLLM was measured elsewhere, on the same kind of card.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.running_server import bench_serve, running
from facet.bundled_model import find_bundled_model
from tests.published_configs import text_only


@dataclass(frozen=True)
class Server:
    model: str
    max_model_len: int
    flags: tuple[str, ...] = ("--skip-tokenizer-init",)
    has_tokenizer: bool = False  # the bundled model's: grammars are matched against its tokens


@dataclass(frozen=True)
class Row:
    """One load, with vLLM's result and the target. `figures` are keys of the result file."""

    name: str
    server: Server
    input_len: int
    output_len: int
    concurrency: int
    num_prompts: int
    figures: tuple[str, ...]
    vllm: str
    target: str
    num_warmups: int = 2
    extra_body: Mapping[str, Any] | None = None


E4B = Server("Gemma 4 E4B", 9216)
E4B_ALL_ROWS = Server("Gemma 4 E4B", 9216, ("--skip-tokenizer-init", "--no-kv-sharing-fast-prefill"))
E4B_WITH_TOKENIZER = Server("Gemma 4 E4B", 9216, (), has_tokenizer=True)
LARGE = Server("Gemma 4 31B", 131_072)
PREFILL = ("request_throughput", "mean_ttft_ms", "mean_tpot_ms")
TOKENS = ("output_throughput", "mean_tpot_ms")
LATENCY = ("mean_ttft_ms", "mean_tpot_ms")
# A list of numbers that is longer than any answer: every token is chosen under a mask, and none ends the answer.
ENDLESS_JSON = {"structured_outputs": {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 100_000}}}

ROWS = (
    Row("e4b-8k-c8", E4B, 8192, 150, 8, 48, PREFILL, "5.58 req/s, 445, 6.62 ms", ">= 7.0"),
    Row("e4b-8k-c32", E4B, 8192, 150, 32, 192, PREFILL, "9.28 req/s, 731, 18.1 ms", ">= 10.8", 8),
    Row("e4b-c1", E4B, 512, 512, 1, 6, LATENCY, "53, 4.91 ms", "<= 25, <= 3.2"),
    Row("e4b-c100", E4B, 512, 512, 100, 300, TOKENS, "11,133 tok/s, 8.38 ms", ">= 14,000", 8),
    Row("e4b-8k-c8-all-rows", E4B_ALL_ROWS, 8192, 150, 8, 48, PREFILL, "4.60 req/s, 647 ms", ">= 5.5"),
    Row("e4b-8k-c32-all-rows", E4B_ALL_ROWS, 8192, 150, 32, 192, PREFILL, "6.81 req/s, 1079 ms", ">= 8.0", 8),
    Row("e4b-json-c8", E4B_WITH_TOKENIZER, 512, 256, 8, 48, TOKENS, "", "", 2, ENDLESS_JSON),
    Row("31b-c1", LARGE, 512, 256, 1, 6, LATENCY, "TPOT 17.7 ms", "<= 16.0"),
    Row("31b-2k-c32", LARGE, 2048, 256, 32, 64, TOKENS, "655 tok/s", ">= 820"),
    Row("31b-64k-c1", LARGE, 65536, 128, 1, 2, LATENCY, "10,650, 18.4 ms", "<= 9,000, <= 16.7", 1),
    Row("31b-64k-c4", LARGE, 65536, 128, 4, 8, ("duration", "mean_tpot_ms"), "88.2 s, 147 ms", "<= 74 s", 0),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in ROWS], default=[row.name for row in ROWS])
    parser.add_argument("--repeat", type=int, default=1, help="times that each row is measured, in one server")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--temperature", type=float, default=None, help="default: the server's, which is 1")
    parser.add_argument("--serve-flags", nargs=argparse.REMAINDER, default=[], help="further flags of every server")
    options = parser.parse_args()
    chosen = [row for row in ROWS if row.name in options.rows]
    results: dict[str, list[dict[str, Any]]] = {row.name: [] for row in chosen}
    for server in dict.fromkeys(row.server for row in chosen):
        with serving(server, options.serve_flags) as seconds:
            print(f"{server.model} {' '.join(server.flags)}: ready after {seconds:.1f} s", flush=True)
            for row in (row for row in chosen if row.server is server):
                for _ in range(options.repeat):
                    results[row.name].append(measure(row, options.temperature))
                    show(row, results[row.name][-1])
    table = Table(title="through HTTP")
    for column in ("load", "Facet", "vLLM 0.26.0", "target"):
        table.add_column(column, no_wrap=True)
    for row in chosen:
        table.add_row(row.name, "\n".join(figures(row, result) for result in results[row.name]), row.vllm, row.target)
    Console(width=140).print(table)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1))


def figures(row: Row, result: dict[str, Any]) -> str:
    failed = f" ({result['failed']} FAILED)" if result["failed"] else ""
    return ", ".join(f"{name.replace('mean_', '')} {result[name]:,.2f}" for name in row.figures) + failed


def show(row: Row, result: dict[str, Any]) -> None:
    print(f"  {row.name}: {figures(row, result)}  [vLLM {row.vllm}; target {row.target}]", flush=True)


@contextmanager
def serving(server: Server, more_flags: list[str]) -> Iterator[float]:
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
        with running(folder, *flags, *server.flags, *more_flags) as seconds:
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
