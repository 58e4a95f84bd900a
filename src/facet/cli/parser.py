"""The argument parser of every command: exact names, the nearest name where one is wrong, and settings from a file."""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from facet.cli.config_file import CONFIG_FLAG, arguments_of
from facet.errors import ConfigError

EXIT_USER_ERROR = 2
_MOST_IN_USAGE = 20  # flags that the first line of help names; of more, it would be a page
_FLAG = re.compile(r"--|-[A-Za-z]+\.")  # -O.mode, but no -0.5
# vLLM's short ways to write one key of an object.
_ONE_KEY = {
    "--spec-method": "--speculative-config.method",
    "--spec-model": "--speculative-config.model",
    "--spec-tokens": "--speculative-config.num_speculative_tokens",
}


class Parser(argparse.ArgumentParser):
    """Refuses an unknown flag or command, suggests the nearest of its own, and accepts no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._origin = ""  # the file whose settings are being read

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Also called for a sub-command, which so reports what it does not know before the whole program does.
        given = list(sys.argv[1:] if args is None else args)
        if not given and self._subparsers is not None:  # `facet` alone: which commands there are
            self.print_help()
            sys.exit(0)
        path = _value_of(CONFIG_FLAG, given) if CONFIG_FLAG in self._option_string_actions else None
        if path == "":
            self.error(f"{CONFIG_FLAG} names no file. Name one, or leave it out.")
        if path is not None:
            # What the file says becomes the default, which the command line overrides.
            self._origin = f"{CONFIG_FLAG} {path}: "
            found = vars(self._parse_all(self._read(path), None))
            model = found.pop("model_by_flag", None)
            self.set_defaults(**found, model_in_file=model)
            self._origin = ""
        return self._parse_all(given, namespace), []

    def _read(self, path: str) -> list[str]:
        single = [flag for flag, action in self._option_string_actions.items() if action.nargs != "+"]
        try:
            return spelled_out(arguments_of(path, single))
        except ConfigError as error:
            self.error(str(error))

    def _parse_all(self, arguments: list[str], namespace: Any) -> argparse.Namespace:
        found: argparse.Namespace
        found, extras = super().parse_known_args(arguments, namespace)
        if extras:
            # Nothing is left of an argument that was an empty string, or only blanks.
            unknown = next(iter(" ".join(extras).split()), "''").split("=")[0]
            self.error(f"{self.prog} has no {unknown}.{nearest(unknown, self._option_string_actions)}")
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            hint = nearest(value, action.choices) or f" It has {', '.join(action.choices)}."
            self.error(f"{self.prog} has no command {value}.{hint}")
        super()._check_value(action, value)

    def format_help(self) -> str:
        if len(self._option_string_actions) > _MOST_IN_USAGE:
            names = (str(action.metavar) for action in self._get_positional_actions())
            self.usage = " ".join(("%(prog)s", *(f"[{name}]" for name in names), "[FLAG ...]"))
        return super().format_help()

    def _print_message(self, message: str, file: Any = None) -> None:
        # As argparse has it, but heard of where it cannot be written.
        if message and file is not None:
            file.write(message)

    def error(self, message: str) -> NoReturn:
        print(one_line(f"error: {self._origin}{message} (--help lists the options)"), file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)


def nearest(name: str, names: Iterable[str]) -> str:
    """A sentence with the nearest of the names, where one is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def one_line(message: str) -> str:
    """A message on one line: messages quote names from files and flags, which may hold anything."""
    return " ".join(message.splitlines())


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """Flags as they are declared: --max_model_len is --max-model-len, --a.b.c VALUE is --a '{"b": {"c": VALUE}}'."""
    result: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if not _FLAG.match(argument):
            result.append(argument)
            continue
        name, equals, value = argument.partition("=")
        name = _ONE_KEY.get(name.replace("_", "-"), name)
        name, dot, keys = name.partition(".")
        name = name.replace("_", "-") if name.startswith("--") else name
        if not dot:
            result.append(name + equals + value)
        elif equals or (value := next(remaining, "")):
            result += [name, _nested(keys.split("."), value)]
        else:
            result.append(name)  # argparse says that a value is missing
    return result


def _nested(keys: list[str], text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    for key in reversed(keys):
        value = {key: value}
    return json.dumps(value)


def _value_of(flag: str, arguments: list[str]) -> str | None:
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
        if argument == flag and index + 1 < len(arguments):
            return arguments[index + 1]
    return None
