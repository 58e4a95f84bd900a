"""Reads adapter_config.json: how an adapter's matrices are scaled, and what else its training did.

What would be computed wrongly without a word is refused: adapters that are no LoRA, and kinds of LoRA that need more
than two matrices or another base model.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from facet.errors import CheckpointError
from facet.model.config_fields import LARGEST_COUNT, ConfigFields, read_config_file, shown

Number = TypeVar("Number", int, float)

CONFIG_FILE = "adapter_config.json"
# Of `init_lora_weights`: these change the base model's weights as well. PEFT writes another value, or none, once an
# adapter has been converted to go with the original ones.
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Fields of kinds of LoRA that are more than two matrices, or other ones; false or empty in those that are not.
_OTHER_KINDS = {
    "use_dora": "DoRA is",
    "use_qalora": "QALoRA is",
    "use_bdlora": "BD-LoRA is",
    "alora_invocation_tokens": "activated LoRA is",
    "arrow_config": "Arrow is",
    "kasa_config": "KaSA is",
    "monteclora_config": "MonteCLoRA is",
    "velora_config": "VeLoRA is",
    "layer_replication": "repeated layers are",
    "trainable_token_indices": "trained rows of the embedding are",
    "fan_in_fan_out": "transposed matrices are",
    "megatron_config": "Megatron's layers are",
}
_LARGEST = 1e30  # of a scale; what is finite in float32
_REPEATED_GROUP, _REPETITION = re.compile(r"\)[+*{]"), re.compile(r"[+*{]")
_MERGE = "Merge it into the model's weights (PEFT's merge_and_unload), and serve those."


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    rank: int
    alpha: float
    is_rank_stabilized: bool
    rank_pattern: Mapping[re.Pattern[str], int]  # by what names of modules end with
    alpha_pattern: Mapping[re.Pattern[str], float]
    base_model: str | None

    def scale_of(self, module: str, rank: int) -> float:
        """By what the product of both matrices of a module is multiplied."""
        alpha = _matching(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)

    def rank_of(self, module: str) -> int:
        return _matching(self.rank_pattern, module, self.rank)


def read_adapter_config(folder: Path) -> AdapterConfig:
    values = read_config_file(folder / CONFIG_FILE)
    fields = ConfigFields(values, CONFIG_FILE)
    kind = values.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(
            f"{folder / CONFIG_FILE}: peft_type is {shown(kind)}, but only LORA is supported. {_MERGE}"
        )
    for name, what in _OTHER_KINDS.items():
        if values.get(name):
            raise CheckpointError(f"{folder / CONFIG_FILE}: {name} is set, but {what} not supported. {_MERGE}")
    if values.get("modules_to_save"):
        raise CheckpointError(
            f"{folder / CONFIG_FILE}: modules_to_save is {shown(values['modules_to_save'])}, but whole modules that "
            f"were trained beside the adapter are not supported. {_MERGE}"
        )
    if values.get("bias", "none") != "none" or values.get("lora_bias"):
        raise CheckpointError(
            f"{folder / CONFIG_FILE}: it trained biases, which Gemma's products do not have. {_MERGE}"
        )
    start = values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASES):
        raise CheckpointError(
            f"{folder / CONFIG_FILE}: init_lora_weights is {shown(start)}, which changed the base model's weights, "
            "too. Save it with path_initial_model_for_weight_conversion, or merge it into the model's weights."
        )
    return AdapterConfig(
        rank=fields.integer("r", 8),
        alpha=_number(fields, "lora_alpha", 8.0),
        is_rank_stabilized=bool(values.get("use_rslora")),
        rank_pattern={pattern: int(value) for pattern, value in _patterns(fields, "rank_pattern").items()},
        alpha_pattern=_patterns(fields, "alpha_pattern"),
        base_model=values["base_model_name_or_path"]
        if isinstance(values.get("base_model_name_or_path"), str)
        else None,
    )


def _number(fields: ConfigFields, name: str, default: float) -> float:
    return _number_in(fields, name, fields.raw(name)) if name in fields else default


def _number_in(fields: ConfigFields, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        raise fields.wrong(name, "a number")
    return float(value)


def _patterns(fields: ConfigFields, name: str) -> dict[re.Pattern[str], float]:
    """Numbers by regular expressions: ends of names, as PEFT matches them."""
    values = fields.raw(name) or {}
    if not isinstance(values, dict):
        raise fields.wrong(name, "an object of numbers by names")
    patterns = {}
    for pattern, value in values.items():
        # Repeated groups, and many repetitions, are what takes for ever; names of modules need neither.
        if len(pattern) > 1000 or _REPEATED_GROUP.search(pattern) or len(_REPETITION.findall(pattern)) > 4:
            raise fields.wrong(name, "an object whose names are simple patterns")
        try:
            compiled = re.compile(rf"(.*\.)?({pattern})$")
        except re.error:
            raise fields.wrong(name, "an object whose names are regular expressions") from None
        patterns[compiled] = _number_in(fields, name, value)
        if name == "rank_pattern" and not 1 <= patterns[compiled] < LARGEST_COUNT:
            raise fields.wrong(name, "an object of positive numbers")
    return patterns


def _matching(patterns: Mapping[re.Pattern[str], Number], module: str, default: Number) -> Number:
    """The value of the first pattern that a module's name ends with."""
    return next((value for pattern, value in patterns.items() if pattern.match(module)), default)
