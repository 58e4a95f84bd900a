"""Names an adapter for calls of `generate` and `chat`, as vLLM's programs do."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from facet.adapter import AdapterSource, check_adapter_name
from facet.errors import ConfigError, RequestError
from facet.offline.given_values import as_list, shown

_FIELD = "lora_request"


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter by its name, and the folder of its files or its name on the hub.

    It is loaded when a call first names it, and stays loaded. One that is loaded already needs no path.
    """

    lora_name: str
    lora_int_id: int = 1  # vLLM's; here the name alone tells adapters apart
    lora_path: str = ""
    lora_local_path: str | None = None  # an older name of lora_path
    base_model_name: str | None = None  # the one that is loaded

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path or self.lora_local_path or ""

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id


@dataclass(frozen=True, slots=True)
class GivenAdapter:
    """An adapter as a call named it, and what it means. Its path may be empty."""

    given: Any
    source: AdapterSource


def as_adapters(given: object, count: int) -> Sequence[GivenAdapter | None]:
    """The adapter of each prompt; None: the model itself."""
    several = None if _is_one(given) else as_list(given)
    if several is None:
        return [_as_adapter(given)] * count
    if len(several) != count:
        raise RequestError(f"{len(several)} adapters for {count} prompts.", field=_FIELD)
    return [_as_adapter(one) for one in several]


def _is_one(given: object) -> bool:
    return given is None or hasattr(given, "lora_name")


def _as_adapter(given: Any) -> GivenAdapter | None:
    """vLLM's own class will do, too."""
    if given is None:
        return None
    name = getattr(given, "lora_name", None)
    path = getattr(given, "lora_path", None) or getattr(given, "lora_local_path", None) or ""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(name, str) or not isinstance(path, str):
        raise RequestError(
            f"{_FIELD} is {shown(given)}, but must be a LoRARequest, or a list with one or None for each prompt.",
            field=_FIELD,
        )
    try:
        check_adapter_name(name)
    except ConfigError as error:
        raise RequestError(str(error), field=_FIELD) from None
    return GivenAdapter(given, AdapterSource(name, path))
