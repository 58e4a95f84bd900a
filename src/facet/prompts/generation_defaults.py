"""Joins what generation_config.json and the flags say about answers: sampling where a request is silent, and limits."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from facet.config import PromptConfig
from facet.errors import ConfigError, RequestError
from facet.model.generation_config import GenerationConfig, read_generation_config
from facet.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_KNOWN = (*_SAMPLING, "do_sample", "max_new_tokens", "max_tokens")
# Keys of Hugging Face's files that change no answer here.
_WITHOUT_EFFECT = frozenset(
    {"_from_model_config", "bos_token_id", "cache_implementation", "pad_token_id", "transformers_version", "use_cache"}
)
_OVERRIDES = "--override-generation-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    eos_token_ids: tuple[int, ...]
    sampling: Mapping[str, Any]
    max_tokens: int | None  # for requests that name none; None: as their API has it
    max_tokens_limit: int | None  # of every answer of a server, whatever the request says


def read_generation_defaults(config: PromptConfig, given: Mapping[str, Any], folder: Path) -> GenerationDefaults:
    """`given` are the overrides, `folder` is the model's. Refuses what no request could be answered with."""
    overrides = dict(given)
    generation = _generation_config(config, folder)
    limit = overrides.pop("max_new_tokens", generation.max_new_tokens if _is_folder(config) else None)
    max_tokens = overrides.pop("max_tokens", limit)
    does_sample = overrides.pop("do_sample", None)
    sampling = {**generation.sampling_defaults(), **overrides}
    if does_sample is False:
        sampling["temperature"] = 0.0
    elif does_sample and sampling.get("temperature") == 0 and "temperature" not in overrides:
        del sampling["temperature"]  # the file's own `do_sample: false`
    if not config.loop_guard:
        sampling["loop_guard"] = False
    if config.default_thinking_token_budget is not None:
        sampling["thinking_token_budget"] = config.default_thinking_token_budget
    for name, number in (("max_new_tokens", limit), ("max_tokens", max_tokens)):
        try:
            SamplingParams(**sampling, max_tokens=number)
        except RequestError as error:
            message = str(error) if error.field != "max_tokens" else str(error).replace("max_tokens", name, 1)
            raise ConfigError(f"The generation defaults cannot be used: {message}") from None
    return GenerationDefaults(
        eos_token_ids=generation.eos_token_ids, sampling=sampling, max_tokens=max_tokens, max_tokens_limit=limit
    )


def read_overrides(config: PromptConfig) -> dict[str, Any]:
    """What the user says about known keys. `null` counts as absent. Needs no model: mistakes are told at once."""
    given = {name: value for name, value in (config.override_generation_config or {}).items() if value is not None}
    idle = sorted(_WITHOUT_EFFECT.intersection(given))
    if idle:
        logger.info("%s: %s changes no answer.", _OVERRIDES, ", ".join(idle))
    given = {name: value for name, value in given.items() if name not in _WITHOUT_EFFECT}
    if unknown := sorted(set(given) - set(_KNOWN)):
        raise ConfigError(f"{_OVERRIDES} names {unknown[0]!r}. Known: {', '.join(_KNOWN)}.")
    if not isinstance(given.get("do_sample", True), bool):
        raise ConfigError(f"{_OVERRIDES} has do_sample {given['do_sample']!r}, but it must be true or false.")
    return given


def _is_folder(config: PromptConfig) -> bool:
    return config.generation_config not in ("auto", "vllm")


def _generation_config(config: PromptConfig, folder: Path) -> GenerationConfig:
    if config.generation_config == "auto":
        return read_generation_config(folder)
    if config.generation_config == "vllm":
        # Neutral sampling; which tokens end an answer is a fact about the model all the same.
        return GenerationConfig(eos_token_ids=read_generation_config(folder).eos_token_ids)
    path = Path(config.generation_config)
    if not path.is_dir():
        raise ConfigError(f"--generation-config {config.generation_config} is neither auto, vllm nor a folder.")
    return read_generation_config(path)
