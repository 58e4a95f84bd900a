"""Sampling settings of vLLM that are taken only where they ask for nothing. Facet has no such settings."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from facet.errors import RequestError


class RequestOutputKind(Enum):
    """What vLLM returns of a request that is still running. `LLM` returns whole answers, so all are alike."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


_INSTEAD: Mapping[str, str] = {
    "extra_args": "There are no plug-ins that would read it. Leave it out.",
    "flat_logprobs": "Log-probabilities are a list with a mapping for each token. Leave it out.",
    "output_kind": "It must be a RequestOutputKind. Leave it out.",
    "skip_reading_prefix_cache": "Give the prompt a cache_salt of its own, so that it shares no cached prefix.",
}


def require_neutral(value: Any, field: str) -> None:
    if value is None or value is False or (field == "extra_args" and value == {}):
        return
    # By name, so that vLLM's own will do.
    if field == "output_kind" and getattr(value, "name", None) in RequestOutputKind.__members__:
        return
    raise RequestError(f"{field} is {value!r}, which is not supported. {_INSTEAD[field]}", field=field)
