"""Decides which GPUs each replica on this machine gets: groups of --tensor-parallel-size, in order.

Several replicas share a group only where --gpu-memory-utilization leaves room for all of them.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from facet.config import ServerConfig
from facet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Placement:
    """`gpus` as CUDA_VISIBLE_DEVICES names them; none: the CPU."""

    gpus: tuple[str, ...] = ()


def place_replicas(config: ServerConfig, gpus: Sequence[str]) -> tuple[Placement, ...]:
    """One placement for each replica. `gpus`: what this process may use."""
    num_replicas, group_size = config.data_parallel_size, config.tensor_parallel_size
    if num_replicas < 1:
        raise ConfigError(f"--data-parallel-size is {num_replicas}, but must be 1 or more.")
    if config.device == "cpu" or (config.device == "auto" and not gpus):
        return (Placement(),) * num_replicas
    if config.device.startswith("cuda:"):
        raise ConfigError(
            f"--device {config.device} names one GPU, but --data-parallel-size {num_replicas} divides all of them. "
            "Leave --device out; CUDA_VISIBLE_DEVICES chooses which are seen."
        )
    num_groups = len(gpus) // group_size
    needed = f"{num_replicas} replicas of {group_size} GPU{'s' * (group_size != 1)} each need "
    found = f"{num_replicas * group_size} GPUs, but this machine shows {len(gpus)}"
    if num_groups == 0:
        raise ConfigError(f"{needed}{found}. Lower the sizes, or use --device cpu, which is for tests.")
    per_group = -(-num_replicas // num_groups)
    if per_group > 1 and per_group * config.gpu_memory_utilization > 1:
        raise ConfigError(
            f"{needed}{found}. Lower --data-parallel-size to {num_groups}, or let {per_group} replicas share a GPU "
            f"with --gpu-memory-utilization {0.9 / per_group:.2g}."
        )
    groups = [tuple(gpus[index * group_size : (index + 1) * group_size]) for index in range(num_groups)]
    return tuple(Placement(groups[number % num_groups]) for number in range(num_replicas))


def visible_gpus(environment_value: str | None) -> list[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, or all. Asks the driver, which torch would take seconds to do."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    named = [name.strip() for name in (environment_value or "").split(",") if name.strip()]
    return (named or [str(index) for index in range(count.value)])[: count.value]
