"""Typed reading of a `config.json`: every field is checked as it is read, and a wrong one is named.

Published configs leave fields out, write null for "default", and have two spellings for some things. This module
knows how to read a field; what the fields mean is `families.py`'s business.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from facet.errors import CheckpointError, ConfigError


def read_config_file(path: Path) -> dict[str, Any]:
    """The parsed `config.json` at `path`."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist. A checkpoint folder holds a config.json.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds {type(config).__name__}, but a config is a JSON object.")
    return config


class ConfigFields:
    """One JSON object of a config, read with checks. `null` counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self._values = values
        self._where = where

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        return self._values.get(name)

    def names(self) -> list[str]:
        return list(self._values)

    def wrong(self, name: str, expected: str) -> ConfigError:
        return ConfigError(f"{self._where}: {name} is {self._values.get(name)!r}, but must be {expected}.")

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self.raw(name)
        if value is None:
            if default is None:
                raise ConfigError(f"{self._where}: {name} is missing.")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(name, f"a whole number of at least {least}")
        return value

    def optional_integer(self, name: str, *, least: int = 0) -> int | None:
        return self.integer(name, least=least) if name in self else None

    def number(self, name: str, default: float | None = None) -> float:
        """A positive, finite number."""
        value = self.raw(name)
        if value is None:
            if default is None:
                raise ConfigError(f"{self._where}: {name} is missing.")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.wrong(name, "a positive number")
        return float(value)

    def optional_number(self, name: str, default: float | None = None) -> float | None:
        """A positive number; where the field is present but null, None, whatever the default."""
        if name in self._values and self._values[name] is None:
            return None
        return self.number(name) if name in self else default

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def section(self, name: str) -> "ConfigFields":
        value = self.raw(name)
        if value is None:
            return ConfigFields({}, f"{self._where}, {name}")
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return ConfigFields(value, f"{self._where}, {name}")

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One id or a list of ids; nothing where the field is absent."""
        value = self.raw(name)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in ids):
            raise self.wrong(name, "a token id or a list of token ids")
        return tuple(ids)

    def per_layer(self, name: str, num_layers: int, default: float) -> list[float]:
        """A number for every layer: given once, or as a list with one entry per layer."""
        value = self.raw(name)
        entries = value if isinstance(value, list) else [default if value is None else value] * num_layers
        if len(entries) != num_layers:
            raise ConfigError(
                f"{self._where}: {name} has {len(entries)} entries, but num_hidden_layers is {num_layers}."
            )
        if any(isinstance(entry, bool) or not isinstance(entry, int | float) or entry < 0 for entry in entries):
            raise self.wrong(name, "a number of at least 0 for every layer")
        return entries
