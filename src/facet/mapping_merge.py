"""Merges settings that are objects inside objects, as JSON has them."""

from collections.abc import Mapping
from typing import Any


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one; where both have a name, `above` wins, and objects are merged in turn."""
    result = dict(below)
    for name, value in above.items():
        before = result.get(name)
        is_both = isinstance(value, Mapping) and isinstance(before, Mapping)
        result[name] = merged(before, value) if is_both else value  # type: ignore[arg-type]
    return result
