"""Copies small arrays from the host to a device, and results back.

The host never waits: on a GPU an array is copied from pinned memory, which torch's host allocator reuses only after the
copy has happened. The caller may change its own array at once.
"""

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integer = TypeVar("Integer", bound=np.integer[Any])

# A kernel is compiled again for a pointer that is not aligned to this where it was before.
_ALIGNMENT_BYTES = 16


def array_on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of one array of any type and shape."""
    staged = _staging(array.shape, array.dtype, device)
    staged.numpy()[...] = array
    return staged.to(device, non_blocking=True)


def copy_to_device(array: NDArray[Any], target: Tensor) -> None:
    """Writes an array over a tensor of its shape and type."""
    staged = _staging(array.shape, array.dtype, target.device)
    staged.numpy()[...] = array
    target.copy_(staged, non_blocking=True)


def indices_on_device(indices: Sequence[int], device: torch.device) -> Tensor:
    """Indices as torch takes them: int64."""
    return array_on_device(np.asarray(indices, np.int64), device)


def arrays_on_device(arrays: Sequence[NDArray[Integer]], device: torch.device) -> list[Tensor]:
    """Copies of several arrays of one type in one transfer. Each begins aligned."""
    per_line = _ALIGNMENT_BYTES // arrays[0].itemsize
    *starts, size = itertools.accumulate((-(-array.size // per_line) * per_line for array in arrays), initial=0)
    staged = _staging((size,), arrays[0].dtype, device)
    host = staged.numpy()
    for start, array in zip(starts, arrays, strict=True):
        host[start : start + array.size] = array.reshape(-1)
    together = staged.to(device, non_blocking=True)
    copies = [together[start : start + array.size] for start, array in zip(starts, arrays, strict=True)]
    return [copy if array.ndim == 1 else copy.view(array.shape) for copy, array in zip(copies, arrays, strict=True)]


def to_host(tensor: Tensor) -> Tensor:
    """A copy on its way to the host: it is there once the device has done all that was launched so far."""
    if tensor.device.type != "cuda":
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def _staging(shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device) -> Tensor:
    """Memory on the host to copy from. Where the device is the host itself, it is the copy."""
    return torch.empty(shape, dtype=_torch_dtype(dtype), pin_memory=device.type == "cuda")


@cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
