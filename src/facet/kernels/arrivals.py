"""Lets the last of several programs combine what all of them stored, inside Triton kernels."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

# Results that several programs may share in one launch.
_MOST_PLACES = 4096


def counters_on(device: torch.device, num_places: int) -> Tensor:
    """Counters for `arrives_last`, zero between launches, which follow each other on one stream."""
    assert num_places <= _MOST_PLACES, "there is a counter for each place"
    return _counters_on(device)


@cache
def _counters_on(device: torch.device) -> Tensor:
    return torch.zeros(_MOST_PLACES, dtype=torch.int32, device=device)


@triton.jit
def arrives_last(arrivals, place, num_shares):
    """Whether all other shares of what `place` counts have stored their results, and these can be read.

    Safe in any order of arrival. The barrier puts the stores of all threads before the one that counts; counting
    releases them to whoever counts later, and acquires what was released before. So the one program that finds all
    others counted sees all they stored. Nobody waits for anybody: programs that never run together do no harm. And
    nobody else comes after the last one, so it can leave a zero for the next launch.
    """
    tl.debug_barrier()
    is_last = tl.atomic_add(arrivals + place, 1, sem="acq_rel", scope="gpu") == num_shares - 1
    if is_last:
        tl.store(arrivals + place, 0)
    return is_last
