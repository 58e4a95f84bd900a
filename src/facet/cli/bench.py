"""`facet bench`: load on a server and its numbers, and two such results side by side."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from facet.bench.config import BenchConfig
from facet.cli.flags import add_common_flags, add_config_flags, config_from
from facet.errors import ConfigError

if TYPE_CHECKING:
    from facet.tokens import Tokenizer

_TOKENIZER_FILES = ("tokenizer*", "special_tokens*")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("bench", help="measure a server, and compare measurements")
    kinds = parser.add_subparsers(dest="bench_command", required=True, metavar="BENCH")
    serve = kinds.add_parser("serve", help="send load to an OpenAI-compatible server and measure it")
    add_config_flags(serve, BenchConfig, positional=None)
    add_common_flags(serve)
    serve.set_defaults(run=run_serve)
    compare = kinds.add_parser("compare", help="put results side by side, as ratios to the first")
    compare.add_argument("results", metavar="RESULT", nargs="+", type=Path, help="files that --save-result wrote")
    add_common_flags(compare)
    compare.set_defaults(run=run_compare)


def run_serve(options: argparse.Namespace) -> int:
    # Imported here: other commands need no client.
    from facet.bench.serve import bench_serve

    config = config_from(options, BenchConfig)
    return bench_serve(config, _load_tokenizer(config.tokenizer))


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


def _load_tokenizer(name: str | None) -> "Tokenizer | None":
    if name is None:
        return None
    # Imported here: without --tokenizer neither library is needed.
    from facet.model.hub import local_folder
    from facet.tokens import Tokenizer

    return Tokenizer.from_folder(local_folder(name, patterns=_TOKENIZER_FILES))
