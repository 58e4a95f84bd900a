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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(ModelConfig):
    """How requests are run."""

    max_num_seqs: int = setting(128, "most requests that run at once")
    max_num_batched_tokens: int | None = setting(
        None, "most tokens computed in one step, all requests together; default: 8192 on a GPU, 2048 on a CPU"
    )
    gpu_memory_utilization: float = setting(0.9, "share of a GPU's memory that weights, activations and cache may use")
    kv_cache_memory_bytes: int | None = setting(
        None, "bytes for keys and values; default: what is left on a GPU, a quarter of the free memory on a CPU"
    )
    enable_prefix_caching: bool = setting(True, "keep the keys of prompts and answers for requests that begin alike")
    kv_sharing_fast_prefill: bool = setting(
        True, "prompt rows skip the layers that read other layers' keys, in models that have such layers"
    )
    async_scheduling: bool = setting(True, "plan and launch a step while the one before it still runs")
    debug_poison_freed_blocks: bool = setting(
        False, "fill freed cache blocks with NaN, so that any read of dead memory is a loud failure"
    )
