"""Reads settings from a YAML file, as `facet serve --config FILE` does, and writes them as arguments."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from facet.errors import ConfigError

CONFIG_FLAG = "--config"
_SECRETS = ("--api-key", "--hf-token")


def arguments_of(path: str, single: Collection[str]) -> list[str]:
    """The flags that stand for the file's entries: `max-model-len: 32k` is --max-model-len=32k.

    `single`: flags that take one value or none. Of a list, the others would look as if they stood for the model.
    """
    import msgspec  # imported here: most commands read no file

    try:
        # Loads plain values only: a tag that would make an object of some class is an error.
        settings = msgspec.yaml.decode(Path(path).expanduser().read_bytes())
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"this is not YAML: {error}") from None
    if settings is None:
        return []
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise ConfigError("the file must map names of flags to values, as in max-model-len: 32768.")
    if CONFIG_FLAG.removeprefix("--") in settings:
        raise ConfigError("one file of settings cannot name another.")
    return [argument for name, value in settings.items() for argument in _arguments(name, value, single)]


def _arguments(name: str, value: Any, single: Collection[str]) -> list[str]:
    flag = f"--{name.removeprefix('--')}"
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    is_part = "." in flag  # of a JSON object, where a list is a value
    if flag.replace("_", "-") in _SECRETS and not _is_text(value):  # 0123 would be 83, and nobody would see it
        raise ConfigError(f"{name} has a value that YAML does not read as text. Write it in quotes.")
    if isinstance(value, list) and not is_part:
        if flag.replace("_", "-") in single:
            if len(value) != 1:
                raise ConfigError(
                    f"{name} has a list of {len(value)}, but {flag} takes one value. Write one, without []."
                )
            return _arguments(name, value[0], single)
        if any(item is None or isinstance(item, bool) for item in value):
            raise ConfigError(
                f"{name} has an empty item, or one that YAML reads as true or false. Remove it, or write it in quotes."
            )
        return [flag, *(json.dumps(item) if isinstance(item, dict) else str(item) for item in value)]
    if isinstance(value, dict | list):
        return [f"{flag}={json.dumps(value)}"]
    return [f"{flag}={value}"]


def _is_text(value: Any) -> bool:
    return all(isinstance(item, str) for item in (value if isinstance(value, list) else [value]))
