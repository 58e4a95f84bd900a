"""Flags from config fields, and config fields from flags: no flag exists that is not a field."""

import argparse
import dataclasses
import types
import typing
from typing import Any, TypeVar

ConfigType = TypeVar("ConfigType")


def add_config_flags(parser: argparse.ArgumentParser, config_type: type[Any]) -> None:
    """A positional for `model`, and a flag in kebab case for every other field."""
    hints = typing.get_type_hints(config_type)
    for field in dataclasses.fields(config_type):
        text = field.metadata["help"].replace("%", "%%")
        choices = field.metadata["choices"]
        if field.name == "model":
            parser.add_argument("model", metavar="MODEL", nargs="?", default=field.default, help=text)
            continue
        flag = "--" + field.name.replace("_", "-")
        if hints[field.name] is bool:
            parser.add_argument(flag, default=field.default, action=argparse.BooleanOptionalAction, help=text)
            continue
        shown = f" (default: {field.default})" if field.default is not None else ""
        parser.add_argument(
            flag,
            default=field.default,
            type=_value_type(hints[field.name]),
            choices=choices,
            metavar=None if choices else _value_type(hints[field.name]).__name__.upper(),
            help=text + shown,
        )


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verbose", action="store_true", help="show tracebacks and debug messages")


def config_from(options: argparse.Namespace, config_type: type[ConfigType]) -> ConfigType:
    names = [field.name for field in dataclasses.fields(config_type)]  # type: ignore[arg-type]
    return config_type(**{name: getattr(options, name) for name in names})


def _value_type(hint: Any) -> type[Any]:
    """`int` of `int | None`."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in hint.__args__ if part is not type(None))
    assert isinstance(hint, type), f"a flag needs a plain type, not {hint}"
    return hint
