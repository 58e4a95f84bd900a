"""How much shared memory a program has on a GPU, and fewer tiles on their way where it is little.

Kernels are tuned for an H200, whose programs may take 227 KB. On an A100 it is 163, and 99 on L4, L40S and cards called
RTX.
"""

from functools import cache

import torch

HOPPER_BYTES = 232_448


@cache
def shared_bytes(device: torch.device) -> int:
    """The bytes of shared memory that a program may take. Where kernels are interpreted, without a GPU, those of a
    Hopper."""
    if device.type != "cuda":
        return HOPPER_BYTES
    from triton.runtime import driver  # what it compares with when a kernel is launched

    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])


def has_room(device: torch.device) -> bool:
    """Whether what fits on a Hopper fits here."""
    return shared_bytes(device) >= HOPPER_BYTES


def fitting_stages(num_stages: int, tile_bytes: int, device: torch.device) -> int:
    """`num_stages`, or as many tiles as there is room for."""
    return max(1, min(num_stages, shared_bytes(device) // tile_bytes))
