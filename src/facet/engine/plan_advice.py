"""Finds settings with which a model would fit where it does not, by planning with each of them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from facet.engine.memory_plan import make_plan
from facet.engine.plan_config import PlanConfig
from facet.errors import CapacityError, UserError

_MOST = 3  # settings to name
_FEW_REQUESTS, _FEW_TOKENS = 8, 2048
_LEAST_CONTEXT = 2048  # shorter ones are no advice


def with_advice(config: PlanConfig, error: CapacityError) -> str:
    """Why a model does not fit, and what to do. What the error itself advises is kept where it helps."""
    if flags := settings_that_fit(config):
        return f"{error} It would fit with {' or with '.join(flags)}."
    if config.kv_cache_memory_bytes is not None or _is_possible(replace(config, max_model_len="auto")):
        return str(error)  # a larger cache, or a context shorter than anyone asks for
    facts, _, _ = str(error).rpartition(". ")
    return f"{facts}. No setting changes that. Use larger GPUs, more of them, or a smaller model."


def _is_possible(config: PlanConfig) -> bool:
    try:
        make_plan(config)
    except UserError:
        return False
    return True


def settings_that_fit(config: PlanConfig) -> list[str]:
    """Flags any of which would do, those that cost least first; or one group of flags that would do together."""
    alone = (flags for change in _changes(config) if (flags := _flags_if_it_fits(config, change)))
    if named := list(islice(alone, _MOST)):
        return named
    together: dict[str, Any] = {}
    for change in _changes(config):
        together |= change
        if _flags_if_it_fits(config, together):
            return [_flags_if_it_fits(config, _needed(config, together)) or ""]
    return []


def _needed(config: PlanConfig, together: dict[str, Any]) -> dict[str, Any]:
    """The flags of `together` without which it does not fit."""
    for name in list(together):
        fewer = {other: value for other, value in together.items() if other != name}
        if _flags_if_it_fits(config, fewer):
            together = fewer
    return together


def _changes(config: PlanConfig) -> Iterator[dict[str, Any]]:
    """What a user may change, from what costs least to what costs most. A later one may replace an earlier one."""
    if not config.embeddings_on_cpu:
        yield {"embeddings_on_cpu": True}
    if config.kv_cache_dtype == "auto":
        yield {"kv_cache_dtype": "fp8"}
    if config.max_num_batched_tokens is None or config.max_num_batched_tokens > _FEW_TOKENS:
        yield {"max_num_batched_tokens": _FEW_TOKENS}
    if config.max_num_seqs > _FEW_REQUESTS:
        yield {"max_num_seqs": _FEW_REQUESTS}
    yield {"max_model_len": "auto"}
    if config.quantization is None and config.weight_format == "auto":
        yield {"quantization": "fp8"}
        yield {"quantization": "int4"}
    if not config.quantize_head:
        yield {"quantize_head": True}
    yield {"tensor_parallel_size": 2 * config.tensor_parallel_size}


def _flags_if_it_fits(config: PlanConfig, change: dict[str, Any]) -> str | None:
    try:
        plan = make_plan(replace(config, **change))
    except UserError:  # it does not fit, or the model is quantized already
        return None
    length = plan.capacity.max_model_len
    if change.get("max_model_len") == "auto":
        if length < min(_LEAST_CONTEXT, plan.spec.max_positions):
            return None
        change = {**change, "max_model_len": length}
    return " ".join(_flag(name, value) for name, value in change.items())


def _flag(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {value}"
