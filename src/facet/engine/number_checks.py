"""Refuses numbers that no engine can run with. Needs no model, so that nobody waits for one to be loaded first."""

from facet.config import EngineConfig
from facet.errors import ConfigError

_MOST_SEQS = 1 << 16  # more than any GPU's memory holds; every one takes memory, and sizes of graphs are counted


def check_numbers(config: EngineConfig) -> None:
    for name in ("tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}, but must be 1 or more.")
    if config.max_num_seqs > _MOST_SEQS:
        raise ConfigError(
            f"--max-num-seqs is {config.max_num_seqs}, but at most {_MOST_SEQS} can run at once. Lower it."
        )
    if config.max_step_ms is not None and not config.max_step_ms > 0:
        raise ConfigError(f"--max-step-ms is {config.max_step_ms:g}, but must be more than 0.")
    if not 0 < config.gpu_memory_utilization <= 1:
        raise ConfigError(f"--gpu-memory-utilization is {config.gpu_memory_utilization}, but must be in (0, 1].")
