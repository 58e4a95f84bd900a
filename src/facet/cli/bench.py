"""`facet bench`: measures a server, or an engine in this process, and compares results."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from facet.bench.config import BenchConfig
from facet.bench.offline_config import (
    LatencyConfig,
    OfflineBenchConfig,
    ThroughputConfig,
    check_latency,
    check_throughput,
)
from facet.cli.flags import add_common_flags, add_config_flags, add_idle_flags, config_from
from facet.cli.models import model_config_from
from facet.errors import ConfigError
from facet.large_imports import large_imports

if TYPE_CHECKING:
    from facet.offline.timed import TimedLLM
    from facet.tokens import Tokenizer

_TOKENIZER_FILES = ("tokenizer*", "special_tokens*")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("bench", help="measure the speed of a server or of the engine, and compare results")
    kinds = parser.add_subparsers(dest="bench_command", required=True, metavar="BENCH")
    serve = kinds.add_parser("serve", help="send load to an OpenAI-compatible server and measure its speed")
    add_config_flags(serve, BenchConfig, positional=None)
    add_common_flags(serve)
    serve.set_defaults(run=run_serve)
    throughput = kinds.add_parser(
        "throughput", help="run many prompts through the engine, without a server: tokens per second"
    )
    _add_offline_flags(throughput, ThroughputConfig)
    throughput.set_defaults(run=run_throughput)
    latency = kinds.add_parser("latency", help="run one batch through the engine repeatedly: seconds per batch")
    _add_offline_flags(latency, LatencyConfig)
    latency.set_defaults(run=run_latency)
    compare = kinds.add_parser("compare", help="print results side by side, with ratios to the first")
    compare.add_argument(
        "results", metavar="RESULT", nargs="+", type=Path, help="result files written with --save-result"
    )
    add_common_flags(compare)
    compare.set_defaults(run=run_compare)


def run_serve(options: argparse.Namespace) -> int:
    # Imported here: other commands need no client.
    from facet.bench.serve import bench_serve

    config = config_from(options, BenchConfig)
    return bench_serve(config, _load_tokenizer(config.tokenizer))


def run_throughput(options: argparse.Namespace) -> int:
    from facet.bench.throughput import bench_throughput

    config = model_config_from(options, ThroughputConfig)
    check_throughput(config)
    return bench_throughput(config, _load_engine(config))


def run_latency(options: argparse.Namespace) -> int:
    from facet.bench.latency import bench_latency

    config = model_config_from(options, LatencyConfig)
    check_latency(config)
    return bench_latency(config, _load_engine(config))


def run_compare(options: argparse.Namespace) -> int:
    from rich.console import Console

    from facet.bench.compare import compare, comparison_table, differences, read_result

    if len(options.results) < 2:
        raise ConfigError("Give two results or more to compare.")
    results = [read_result(path) for path in options.results]
    names = [path.stem for path in options.results]
    console = Console()
    console.print(comparison_table(compare(results), names))
    for line in differences(results, names):
        console.print(line, highlight=False)
    return 0


def _add_offline_flags(parser: argparse.ArgumentParser, config_type: type[OfflineBenchConfig]) -> None:
    add_config_flags(parser, config_type)
    add_idle_flags(parser)
    add_common_flags(parser)


def _load_engine(config: OfflineBenchConfig) -> "TimedLLM":
    # Imported here: measuring a server needs no torch.
    with large_imports():
        from facet.offline.timed import TimedLLM

    llm = TimedLLM(
        config.model,
        skip_tokenizer_init=config.skip_tokenizer_init,
        show_progress=not config.disable_tqdm,
        **config.engine_settings,
    )
    for line in llm.start_lines:
        print(line, file=sys.stderr)
    return llm


def _load_tokenizer(name: str | None) -> "Tokenizer | None":
    if name is None:
        return None
    # Imported here: without --tokenizer neither library is needed.
    from facet.model.hub import local_folder
    from facet.tokens import Tokenizer

    return Tokenizer.from_folder(local_folder(name, patterns=_TOKENIZER_FILES))
