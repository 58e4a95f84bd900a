"""Adapters (LoRA): low-rank matrices beside those of a model, which change what requests get that name one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from facet.errors import ConfigError

_NAME = re.compile(r"\S{1,256}")


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """An adapter that is to be loaded: the name that requests know it by, and where its files are."""

    name: str
    path: str
    replaces: bool = False  # whichever is loaded under that name


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """An adapter that an engine has loaded, as a request of that engine refers to it."""

    number: int  # its place among the loaded ones, from 1 on; rows without an adapter have 0
    key: str  # of its files: the same numbers have the same key, and their requests may share cached prefixes


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """What an engine says of an adapter that it has loaded."""

    name: str
    path: str
    line: str  # what it changes, for people


def read_adapter_sources(given: Sequence[str]) -> tuple[AdapterSource, ...]:
    """Adapters as flags name them: name=path, or {"name": "...", "path": "..."}."""
    sources = tuple(_read_source(text) for text in given)
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--lora-modules names {name!r} twice. Give every adapter a name of its own.")
    return sources


def check_adapter_name(name: str) -> None:
    """Raises `ConfigError` for a name that no request could give, or that would break lines of a log."""
    if not _NAME.fullmatch(name) or not name.isprintable():
        raise ConfigError(
            f"An adapter cannot be called {name[:300]!r}: its name needs 1 to 256 characters that can be printed, "
            "none of them blank."
        )


def _read_source(text: str) -> AdapterSource:
    if text.lstrip().startswith("{"):
        try:
            fields = msgspec.json.decode(text, type=_Source)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ConfigError(f"--lora-modules {text} is not what it should be: {error}. {_HOW}") from None
        name, path = fields.name, fields.path
    else:
        name, separator, path = text.partition("=")
        if not separator:
            raise ConfigError(f"--lora-modules {text} names no path. {_HOW}")
    check_adapter_name(name)
    if not path:
        raise ConfigError(f"--lora-modules {text} names no path. {_HOW}")
    return AdapterSource(name, path)


_HOW = 'Write name=path, or {"name": "...", "path": "..."}; the path is a folder or a name on the hub.'


class _Source(msgspec.Struct):
    """vLLM's form. It may name the base model, which is the one that is served."""

    name: str
    path: str
    base_model_name: str | None = None
