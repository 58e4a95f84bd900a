"""Turns the keyword arguments of `LLM` into a config, and answers names that it does not have."""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from facet.adapter import read_adapter_sources
from facet.config import PromptConfig, ServerConfig
from facet.errors import ConfigError
from facet.idle_settings import IDLE_SETTINGS, note_of
from facet.offline.given_values import shown
from facet.offline.setting_types import checked

logger = logging.getLogger(__name__)

_KNOWN = {field.name for field in fields(PromptConfig)}
_OF_SERVERS = {field.name for field in fields(ServerConfig)} - _KNOWN
# Settings of servers too, but programs written for vLLM give them to an `LLM`; here they mean nothing.
_QUIET = ("disable_log_stats", "max_logprobs", "served_model_name")
# Arguments of vLLM's `LLM` that are no flags here: the values that ask for nothing, and why there are no others.
_NEUTRAL: Mapping[str, tuple[tuple[object, ...], str]] = {
    "data_parallel_size": ((1,), "an LLM is one replica; facet serve -dp runs several"),
    "enable_mm_embeds": ((False,), "media are given as they are, not as embeddings"),
    "enable_prompt_embeds": ((False,), "prompts are text or token ids"),
    "enable_return_routed_experts": ((False,), "which experts were chosen is not kept"),
    "offload_group_size": ((0,), "weights are not offloaded; quantization makes them smaller"),
    "offload_num_in_group": ((1,), "weights are not offloaded; quantization makes them smaller"),
    "offload_params": ((set(), []), "weights are not offloaded; quantization makes them smaller"),
    "offload_prefetch_step": ((1,), "weights are not offloaded; quantization makes them smaller"),
    "pooler_config": ((), "Facet generates text and nothing else"),
    "profiler_config": ((), "there is no profiler in it"),
    "quantization_config": ((), "quantization names the method, and a checkpoint the rest"),
    "return_sampling_mask": ((False,), "which tokens could have been sampled is not kept"),
    "spec_method": ((), "drafts are set with speculative_config"),
    "spec_model": ((), "drafts are set with speculative_config"),
    "spec_tokens": ((), "drafts are set with speculative_config"),
}
_TAKEN = {*_KNOWN, *_QUIET, *_NEUTRAL, *IDLE_SETTINGS}


def read_settings(model: object, settings: Mapping[str, Any]) -> PromptConfig:
    """The config of a model with these settings. vLLM's that set nothing here are named in the log.

    None is the default, as it is for flags that are left out, and for vLLM.
    """
    given = {}
    for name, value in {"model": model, **settings}.items():
        if name not in _TAKEN and not (value is None and name in _OF_SERVERS):
            raise ConfigError(_unknown(name))
        if value is None or name in _QUIET:
            continue
        if name in _KNOWN:
            if (plain := _as_ours(name, value)) is not None:
                given[name] = checked(name, plain)
        elif name in _NEUTRAL:
            values, reason = _NEUTRAL[name]
            if value not in values:
                raise ConfigError(f"{name}={shown(value)} is not possible: {reason}.")
        else:
            logger.info("%s", note_of(name, value, is_flag=False))
    config = PromptConfig(**given)
    read_adapter_sources(config.lora_modules)  # what is wrong with them is said before a model is loaded
    return config


def _as_ours(name: str, value: Any) -> Any:
    """What vLLM's programs write in another way."""
    match name, value:
        case "max_model_len", -1:
            return "auto"
        case "dtype", torch.dtype():
            return str(value).removeprefix("torch.")
        case "hf_token", True:
            return None  # the token of `hf auth login`
    return value


def _unknown(name: str) -> str:
    if name in _OF_SERVERS:
        return f"LLM has no setting {name!r}: it is for a server (facet serve --{name.replace('_', '-')})."
    near = difflib.get_close_matches(name, [*_KNOWN, *IDLE_SETTINGS], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else " `facet serve --help` lists the settings."
    return f"LLM has no setting {name!r}.{hint}"
