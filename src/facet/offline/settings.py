"""Turns the keyword arguments of `LLM` into a config, and answers names that it does not have."""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from facet.config import PromptConfig, ServerConfig
from facet.errors import ConfigError
from facet.idle_settings import IDLE_SETTINGS, note_of
from facet.offline.setting_types import checked

logger = logging.getLogger(__name__)

_KNOWN = {field.name for field in fields(PromptConfig)}
_OF_SERVERS = {field.name for field in fields(ServerConfig)} - _KNOWN
_QUIET = "disable_log_stats"  # of servers too, but many programs give it to an LLM


def read_settings(model: object, settings: Mapping[str, Any]) -> PromptConfig:
    """The config of a model with these settings. vLLM's that set nothing here are named in the log."""
    given = {}
    for name, value in {"model": model, **settings}.items():
        if name in _KNOWN:
            given[name] = value
        elif name in IDLE_SETTINGS:
            logger.info("%s", note_of(name, value, is_flag=False))
        elif name != _QUIET:
            raise ConfigError(_unknown(name))
    if given.get("max_model_len") == -1:
        given["max_model_len"] = "auto"  # vLLM writes either
    # None is the default, as it is for flags that are left out, and for vLLM.
    return PromptConfig(**{name: checked(name, value) for name, value in given.items() if value is not None})


def _unknown(name: str) -> str:
    if name in _OF_SERVERS:
        return f"LLM has no setting {name!r}: it is for a server (facet serve --{name.replace('_', '-')})."
    near = difflib.get_close_matches(name, [*_KNOWN, *IDLE_SETTINGS], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else " `facet serve --help` lists the settings."
    return f"LLM has no setting {name!r}.{hint}"
