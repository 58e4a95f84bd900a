"""The `facet` command: parses arguments, runs the sub-command and reports errors. Each sub-command is a module with
`add_parser` and a function that runs it, and only the one that is given is imported."""

import argparse
import errno
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from facet.cli.any_text import take_any_text
from facet.cli.parser import EXIT_USER_ERROR, Parser, one_line, spelled_out
from facet.errors import EngineError, UserError
from facet.version import __version__

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

# The module of each, in the order of --help.
MODULES = {
    "serve": "serve",
    "deploy": "deploy",
    "chat": "chat",
    "complete": "complete",
    "run-batch": "run_batch",
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
    """The parser of a command, or of all commands where it is none of them."""
    parser = Parser(prog="facet", description="Inference and serving for the Gemma family of models.")
    parser.add_argument("--version", action="version", version=f"facet {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = dict.fromkeys(MODULES.values()) if command not in MODULES else (MODULES[command],)
    for module in modules:
        importlib.import_module(f"facet.cli.{module}").add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        try:
            take_any_text()
            return _run(spelled_out(sys.argv[1:] if arguments is None else arguments))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where it is known what to do if that fails
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of the output has gone, as `head` does
        _end_output()
        return EXIT_FAILED
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _end_output()
        print(f"error: A write failed: {error.strerror}. Make room on the disk, or write elsewhere.", file=sys.stderr)
        return EXIT_FAILED


def _run(given: Sequence[str]) -> int:
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
    return code


def _end_output() -> None:
    """Ends the output: nothing more can be printed, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
