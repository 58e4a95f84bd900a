"""The `facet` command: parses arguments, runs the sub-command and reports errors. Each sub-command is a module with
`add_parser` and `run`."""

import argparse
import difflib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from facet.cli import bench, chat, complete, doctor, inspect, plan, see, serve
from facet.errors import EngineError, UserError
from facet.version import __version__

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Refuses an unknown flag, suggests the nearest name, and accepts no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> None:  # type: ignore[override]
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            # Nothing follows the prefix where the argument was an empty string.
            unknown = next(iter(message.removeprefix(prefix).split()), "''").split("=")[0]
            near = difflib.get_close_matches(unknown, list(self._flags()), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            message = f"{self.prog} has no {unknown}.{hint}"
        print(_one_line(f"error: {message} (--help lists the options)"), file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)

    def _flags(self) -> set[str]:
        flags = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    flags |= parser._flags()
        return flags


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="facet", description="Inference and serving for the Gemma family of models.")
    parser.add_argument("--version", action="version", version=f"facet {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (serve, chat, complete, plan, bench, doctor, inspect, see):
        command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(_with_dashes(sys.argv[1:] if arguments is None else arguments))
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.INFO, format="%(message)s")
    try:
        code: int = options.run(options)
    except (UserError, EngineError) as error:
        if options.verbose:
            traceback.print_exc()
        else:
            print(_one_line(f"error: {error}"), file=sys.stderr)
        return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone, as `head` does. Nothing more can be printed there, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code


def _with_dashes(arguments: Sequence[str]) -> list[str]:
    """Turns --max_model_len into --max-model-len: people write both."""
    flags = (argument.partition("=") if argument.startswith("--") else (argument, "", "") for argument in arguments)
    return [name.replace("_", "-") + equals + value if name.startswith("--") else name for name, equals, value in flags]


def _one_line(message: str) -> str:
    """Messages quote names from files and flags, which may hold anything."""
    return " ".join(message.splitlines())
