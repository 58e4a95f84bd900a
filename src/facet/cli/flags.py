"""Makes command-line flags from config fields, and configs from parsed flags. Every flag is a field."""

import argparse
import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from facet.cli.config_file import CONFIG_FLAG
from facet.config import ContextLength
from facet.idle_settings import IDLE_SETTINGS
from facet.mapping_merge import merged
from facet.quantity import parse_quantity

ConfigType = TypeVar("ConfigType")

BY_FLAG = "--model"
_MOST_SHOWN = 6  # choices in help; more of them would bury its text
_BUNDLED = "; default: the bundled model"
_PAIRS = re.compile(r"\w+=[^,={}]*(,\w+=[^,={}]*)*")


def add_config_flags(
    parser: argparse.ArgumentParser,
    config_type: type[Any],
    *,
    positional: str | None = "model",
    one_at_a_time: Collection[str] = (),
    unlisted: Collection[str] = (),
) -> None:
    """A positional for the field of that name, and a flag in kebab case for every other.

    A flag of several values takes all that follow it; those `one_at_a_time` take one, and are given again for more.
    Those `unlisted` are taken, but help says nothing of them. Help has a group for each class that the config inherits
    from, under the first sentence of its docstring; what only this command has comes first.
    """
    hints = typing.get_type_hints(config_type)
    classes = [owner for owner in config_type.__mro__ if dataclasses.is_dataclass(owner)]
    groups = {owner: parser.add_argument_group(_title_of(owner)) for owner in classes}
    for field in dataclasses.fields(config_type):
        text = field.metadata["help"].replace("%", "%%") + (_BUNDLED if field.name == "model" else "")
        if field.name == positional:
            # None where it was left out: an empty string is something else.
            parser.add_argument(field.name, metavar=field.name.upper(), nargs="?", help=text)
            if positional == "model":
                parser.add_argument(BY_FLAG, dest="model_by_flag", metavar="MODEL", help="another way to write MODEL")
            continue
        kind, choices = _kind_of(hints[field.name]), field.metadata["choices"]
        if kind.action is argparse.BooleanOptionalAction:
            text += " (default: on)" if field.default else ""
            options: dict[str, Any] = {}
        else:
            takes_all = kind.action is _Several and field.name not in one_at_a_time
            text += _shown_default(field.default)
            are_shown = choices is not None and len(choices) <= _MOST_SHOWN
            options = {"type": kind.convert, "choices": choices, "metavar": None if are_shown else kind.name}
            options["nargs"] = "+" if takes_all else None
        owner = next(owner for owner in classes if field.name in owner.__annotations__)
        groups[owner].add_argument(
            "--" + field.name.replace("_", "-"),
            *field.metadata["also"],
            default=field.default,
            action=_OneMore if field.name in one_at_a_time else kind.action,
            help=argparse.SUPPRESS if field.name in unlisted else text,
            **options,
        )


def _title_of(owner: type[Any]) -> str:
    assert owner.__doc__ is not None, "a config says what it is for"
    return owner.__doc__.partition(".")[0]


def add_server_flags(
    parser: argparse.ArgumentParser, config_type: type[Any], *, unlisted: Collection[str] = ()
) -> None:
    """What a command that serves a model takes: every field, vLLM's flags without an effect, a file of settings."""
    add_config_flags(parser, config_type, unlisted=unlisted)
    add_idle_flags(parser)
    parser.add_argument(
        CONFIG_FLAG, metavar="FILE", help="YAML file that maps names of flags to values; flags given here override it"
    )
    add_common_flags(parser)


def add_idle_flags(parser: argparse.ArgumentParser) -> None:
    """vLLM's flags that set nothing here, unless this command has them. Help does not list them."""
    parser.set_defaults(idle={})
    for name, setting in IDLE_SETTINGS.items():
        flag = name.replace("_", "-")
        if f"--{flag}" not in parser._option_string_actions:
            flags = (f"--{flag}", f"--no-{flag}") if setting.is_switch else (f"--{flag}", *setting.also)
            nargs = 0 if setting.is_switch else "+" if setting.takes_several else None
            parser.add_argument(*flags, dest=name, nargs=nargs, action=_Idle, help=argparse.SUPPRESS)


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="show tracebacks and debug messages, such as where the time of a start went",
    )


def config_from(options: argparse.Namespace, config_type: type[ConfigType]) -> ConfigType:
    fields = dataclasses.fields(config_type)  # type: ignore[arg-type]
    given = {field.name: getattr(options, field.name) for field in fields}
    return config_type(**{name: value for name, value in given.items() if value is not None})


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    """What may follow a flag, and what becomes of it."""

    name: str
    convert: Callable[[str], Any]
    action: type[argparse.Action] | str = "store"


class _Several(argparse.Action):
    """Collects values in a tuple; a repeated flag adds to it."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if len(values) == 1 and str(values[0]).startswith("["):
            values = _json_list(parser, values[0])  # vLLM's way of writing several
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, (*(() if before is self.default else before), *values))


class _OneMore(argparse.Action):
    """Adds one value per flag to a tuple."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, (*(() if before is self.default else before), values))


class _Merged(argparse.Action):
    """A JSON object; a repeated flag adds to it."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is self.default else merged(before, values))


class _Idle(argparse.Action):
    """Remembers what was given to a flag that sets nothing."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        value = not str(option).startswith("--no-") if self.nargs == 0 else values
        namespace.idle = {**namespace.idle, self.dest: value}


def _kind_of(hint: Any) -> _Kind:
    """`int` of `int | None`, the items of a tuple, JSON for a mapping."""
    if hint == ContextLength:
        return _Kind("LENGTH", _context_length)
    is_optional = isinstance(hint, types.UnionType)
    if is_optional:
        hint = next(part for part in hint.__args__ if part is not type(None))
    if typing.get_origin(hint) is tuple:
        item = _kind_of(typing.get_args(hint)[0])
        return _Kind(item.name, item.convert, _Several)
    if typing.get_origin(hint) is Mapping:
        return _Kind("JSON", _json_object, _Merged)
    if hint is bool:
        return _Kind("", bool, argparse.BooleanOptionalAction)
    if hint is int:
        return _Kind("INT", _count_or_auto if is_optional else _count)
    assert isinstance(hint, type), f"a flag needs a plain type, not {hint}"
    return _Kind(hint.__name__.upper(), hint)


def _count(text: str) -> int:
    try:
        return parse_quantity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count_or_auto(text: str) -> int | None:
    return None if text == "auto" else _count(text)


def _context_length(text: str) -> ContextLength:
    return "auto" if text in ("auto", "-1") else _count(text)  # vLLM writes either


def _json_list(parser: argparse.ArgumentParser, text: str) -> list[str]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        parser.error(f"{text!r} is not a JSON list of strings")
    return values


def _json_object(text: str) -> dict[str, Any]:
    if _PAIRS.fullmatch(text):  # image=4,audio=1, as older recipes write it
        text = json.dumps({name: _plain(value) for name, _, value in (pair.partition("=") for pair in text.split(","))})
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _shown_default(default: Any) -> str:
    if default is None or default in ((), ""):
        return ""
    return f" (default: {' '.join(default) if isinstance(default, tuple) else default})"
