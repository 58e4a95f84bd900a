"""Small arrays on their way from the host to a device."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integer = TypeVar("Integer", bound=np.integer[Any])

# A kernel is compiled anew for a pointer that is not aligned to this where it was before.
_ALIGNMENT_BYTES = 16


def arrays_on_device(arrays: Sequence[NDArray[Integer]], device: torch.device) -> list[Tensor]:
    """Copy several arrays of one type in one transfer that the host does not wait for. Each begins aligned."""
    step = _ALIGNMENT_BYTES // arrays[0].itemsize
    starts = np.cumsum([0, *(-(-array.size // step) * step for array in arrays)]).tolist()
    is_gpu = device.type == "cuda"
    together = torch.empty(starts[-1], dtype=torch.from_numpy(arrays[0][:0]).dtype, pin_memory=is_gpu)
    host = together.numpy()
    for start, array in zip(starts, arrays, strict=False):
        host[start : start + array.size] = array.reshape(-1)
    if is_gpu:
        together = together.to(device, non_blocking=True)
    return [
        together[start : start + array.size].view(array.shape) for start, array in zip(starts, arrays, strict=False)
    ]
