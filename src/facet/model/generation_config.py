"""Reads `generation_config.json`: the sampling settings that a checkpoint's authors recommend."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from facet.errors import CheckpointError
from facet.model.config_fields import ConfigFields

_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """Ids that end an answer, and sampling settings to use where a request has none of its own."""

    eos_token_ids: tuple[int, ...] = ()
    sampling: tuple[tuple[str, float], ...] = ()
    max_new_tokens: int | None = None

    def sampling_defaults(self) -> dict[str, Any]:
        return {name: int(value) if name == "top_k" else value for name, value in self.sampling}


def read_generation_config(folder: Path) -> GenerationConfig:
    """Empty where the file does not exist: base models often have none."""
    path = folder / "generation_config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return GenerationConfig()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds {type(values).__name__}, but must be a JSON object.")
    fields = ConfigFields(values, "generation_config.json")
    samples = fields.boolean("do_sample", True)
    settings = tuple((name, fields.number(name)) for name in _SAMPLING_FIELDS if name in fields)
    return GenerationConfig(
        eos_token_ids=fields.token_ids("eos_token_id"),
        sampling=settings if samples else (("temperature", 0.0),),
        max_new_tokens=fields.optional_integer("max_new_tokens", least=1),
    )
