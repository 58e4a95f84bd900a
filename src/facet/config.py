"""What the user asked for. Fields may be None or "auto"; `resolve` answers them, and nothing writes to them later.

Command-line flags and their help are made from these fields: this is the one door.
"""

from dataclasses import dataclass, field
from typing import Any


def setting(default: Any, help: str, *, choices: tuple[str, ...] | None = None) -> Any:
    """A field that is also a command-line flag."""
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, from where, in which numbers."""

    model: str = setting("", "a folder with a checkpoint, or its name on the hub (owner/name)")
    revision: str | None = setting(None, "branch, tag or commit on the hub")
    dtype: str = setting(
        "auto",
        "type of weights and activations; auto: the one most of the checkpoint is stored in",
        choices=("auto", "bfloat16", "float16", "float32", "half", "float"),
    )
    load_format: str = setting(
        "auto",
        "auto: read safetensors; dummy: random weights from the config alone",
        choices=("auto", "dummy"),
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N; auto takes the first GPU, or the CPU if there is none")
    max_model_len: int | None = setting(None, "longest context in tokens; default: what the model was made for")
    seed: int = setting(0, "seed of random weights and of sampling without a seed of its own")
