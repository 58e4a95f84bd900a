"""Reads the fields of a `config.json` with type checks; a wrong field is named.

Published configs leave fields out, write null for "default", and have two spellings for some things. This module
knows how to read a field; `families.py` knows what the fields mean.
"""

import json
import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from facet.errors import CheckpointError, ConfigError
from facet.mapping_merge import merged

# Larger counts are slips or worse: nothing this large fits a machine, and tensors index with 32 bits in places.
LARGEST_COUNT = 2**31 - 1

# Beside a config.json: how media are prepared. Checkpoints have one of them, both or none.
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


def read_config_file(path: Path, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The parsed `config.json` at `path`, with the user's changes to it."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist. A checkpoint folder holds a config.json.") from None
    except (OSError, ValueError, RecursionError) as error:
        # ValueError: not UTF-8, not JSON, or a number of thousands of digits. RecursionError: nested without end.
        raise CheckpointError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds {type(config).__name__}, but a config is a JSON object.")
    return merged(config, overrides or {})


class ConfigFields:
    """One JSON object of a config, read with checks. `null` counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self._values = values
        self._where = where

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        return self._values.get(name)

    def values(self) -> dict[str, Any]:
        return dict(self._values)

    def names(self) -> list[str]:
        return list(self._values)

    def wrong(self, name: str, expected: str) -> ConfigError:
        return ConfigError(f"{self._where}: {name} is {shown(self._values.get(name))}, but must be {expected}.")

    def integer(self, name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
        value = self.raw(name)
        if value is None:
            if default is None:
                raise ConfigError(f"{self._where}: {name} is missing.")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            limit = f"from {least} to {most:,}" if isinstance(value, int) and value > most else f"of at least {least}"
            raise self.wrong(name, f"a whole number {limit}")
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
        if not _is_number(value) or value <= 0:
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

    def integers_per_layer(self, name: str, num_layers: int, default: int) -> list[int]:
        """A count for every layer: given once, or as a list with one entry per layer."""
        counts = []
        for count in self._one_per_layer(name, num_layers, default):
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= LARGEST_COUNT:
                raise self.wrong(name, f"a whole number from 1 to {LARGEST_COUNT:,}, or a list of one per layer")
            counts.append(count)
        return counts

    def fractions_per_layer(self, name: str, num_layers: int) -> list[float]:
        """A number from 0 to just below 1 for every layer: given once, or as a list with one entry per layer."""
        fractions = []
        for fraction in self._one_per_layer(name, num_layers, 0.0):
            if not _is_number(fraction) or not 0 <= fraction < 1:
                raise self.wrong(name, "at least 0 and below 1, or a list of one such number per layer")
            fractions.append(float(fraction))
        return fractions

    def _one_per_layer(self, name: str, num_layers: int, default: float) -> list[Any]:
        value = self.raw(name)
        entries = value if isinstance(value, list) else [default if value is None else value] * num_layers
        if len(entries) != num_layers:
            raise ConfigError(
                f"{self._where}: {name} has {len(entries)} entries, but num_hidden_layers is {num_layers}."
            )
        return entries


def shown(value: object) -> str:
    """A value as messages quote it: on one line, and shortened where it is long."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 80  # room for the longest name of an architecture
    return short.repr(value)


def _is_number(value: object) -> bool:
    """A finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
