"""Makes command-line flags from config fields, and configs from parsed flags. Every flag is a field."""

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

ConfigType = TypeVar("ConfigType")

_BUNDLED = "; default: the bundled model"


def add_config_flags(
    parser: argparse.ArgumentParser,
    config_type: type[Any],
    *,
    positional: str | None = "model",
    one_at_a_time: Collection[str] = (),
) -> None:
    """A positional for the field of that name, and a flag in kebab case for every other.

    A flag of several values takes all that follow it; those `one_at_a_time` take one, and are given again for more.
    """
    hints = typing.get_type_hints(config_type)
    for field in dataclasses.fields(config_type):
        text = field.metadata["help"].replace("%", "%%") + (_BUNDLED if field.name == "model" else "")
        choices = field.metadata["choices"]
        if field.name == positional:
            # None where it was left out: an empty string is something else.
            parser.add_argument(field.name, metavar=field.name.upper(), nargs="?", help=text)
            continue
        flag = "--" + field.name.replace("_", "-")
        if hints[field.name] is bool:
            text += " (default: on)" if field.default else ""
            parser.add_argument(flag, default=field.default, action=argparse.BooleanOptionalAction, help=text)
            continue
        kind = _kind_of(hints[field.name])
        takes_all = kind.is_list and field.name not in one_at_a_time
        parser.add_argument(
            flag,
            default=field.default,
            type=kind.convert,
            nargs="+" if takes_all else None,
            action=_Several if takes_all else _OneMore if kind.is_list else "store",
            choices=choices,
            metavar=None if choices else kind.name,
            help=text + _shown_default(field.default),
        )


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verbose", action="store_true", help="show tracebacks and debug messages")


def config_from(options: argparse.Namespace, config_type: type[ConfigType]) -> ConfigType:
    fields = dataclasses.fields(config_type)  # type: ignore[arg-type]
    given = {field.name: getattr(options, field.name) for field in fields}
    return config_type(**{name: value for name, value in given.items() if value is not None})


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    """What may follow a flag."""

    name: str
    convert: Callable[[str], Any]
    is_list: bool = False


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
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), values))


def _kind_of(hint: Any) -> _Kind:
    """`int` of `int | None`, the items of a tuple, JSON for a mapping."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in hint.__args__ if part is not type(None))
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return _Kind(item.__name__.upper(), item, is_list=True)
    if typing.get_origin(hint) is Mapping:
        return _Kind("JSON", _json_object)
    assert isinstance(hint, type), f"a flag needs a plain type, not {hint}"
    return _Kind(hint.__name__.upper(), hint)


def _json_list(parser: argparse.ArgumentParser, text: str) -> list[str]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        parser.error(f"{text!r} is not a JSON list of strings")
    return values


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def _shown_default(default: Any) -> str:
    if default is None or default in ((), ""):
        return ""
    return f" (default: {' '.join(default) if isinstance(default, tuple) else default})"
