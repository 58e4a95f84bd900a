"""Says where kernels in Gluon for Hopper GPUs run, and on how many multiprocessors."""

from functools import cache

import torch


@cache
def runs_on_hopper(device: torch.device) -> bool:
    """Whether the card is a Hopper, and Triton has Gluon by names that are known."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    try:
        from facet.kernels import gluon_names  # noqa: F401
    except (ImportError, AttributeError):
        return False
    return True


@cache
def num_multiprocessors(device: torch.device) -> int:
    """The multiprocessors of a GPU. Where kernels are emulated, without one, so few that each has several tiles."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3
