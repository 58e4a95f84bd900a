"""The `facet` command: parses arguments, runs the sub-command and reports errors. Each sub-command is a module with
`add_parser` and a function that runs it, and only the one that is given is imported."""

import argparse
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from facet.cli.parser import EXIT_USER_ERROR, Parser, one_line, spelled_out
from facet.errors import EngineError, UserError
from facet.version import __version__

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

# The module of each, in the order of --help.
MODULES = {
    "serve": "serve",
    "deploy": "deploy",
    "chat": "chat",
    "complete": "complete",
    "pull": "cached_models",
    "list": "cached_models",
    "rm": "cached_models",
    "plan": "plan",
    "bench": "bench",
    "doctor": "doctor",
    "inspect": "inspect",
    "see": "see",
}


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Of a command, or of all where it is none of them."""
    parser = Parser(prog="facet", description="Inference and serving for the Gemma family of models.")
    parser.add_argument("--version", action="version", version=f"facet {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = dict.fromkeys(MODULES.values()) if command not in MODULES else (MODULES[command],)
    for module in modules:
        importlib.import_module(f"facet.cli.{module}").add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = spelled_out(sys.argv[1:] if arguments is None else arguments)
    options = make_parser(next(iter(given), None)).parse_args(given)
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.INFO, format="%(message)s")
    try:
        code: int = options.run(options)
    except (UserError, EngineError) as error:
        if options.verbose:
            traceback.print_exc()
        else:
            print(one_line(f"error: {error}"), file=sys.stderr)
        return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone, as `head` does. Nothing more can be printed there, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code
