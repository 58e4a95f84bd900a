"""Memory that can be given back, and comes again at the same address.

Captured graphs and views hold the addresses of what they read. On a GPU, addresses are reserved apart from the memory
behind them (CUDA's virtual memory management, called through its driver: torch frees memory only with its address). On
a CPU, the operating system takes the pages of a mapping and gives new ones when they are touched.
"""

import contextlib
import ctypes
import mmap
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from facet.errors import CapacityError


class RemovableMemory(Protocol):
    bytes: Tensor  # uint8; not to be touched while it is removed

    def remove(self) -> None:
        """Gives the memory back. What was in it is lost."""

    def bring_back(self) -> None:
        """Brings the memory back, uninitialised. Does nothing where it was not removed."""


def removable_memory(num_bytes: int, device: torch.device) -> RemovableMemory:
    return GpuMemory(num_bytes, device) if device.type == "cuda" else HostMemory(num_bytes)


class HostMemory:
    def __init__(self, num_bytes: int) -> None:
        # Private: the pages of a shared mapping would stay.
        self._mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(AttributeError, OSError):  # a system without them
            self._mapping.madvise(mmap.MADV_HUGEPAGE)  # a page to touch instead of five hundred
        self.bytes = torch.frombuffer(self._mapping, dtype=torch.uint8)

    def remove(self) -> None:
        self._mapping.madvise(mmap.MADV_DONTNEED)

    def bring_back(self) -> None:
        """Brings the memory back; its pages come as they are touched."""


class GpuMemory:
    """Lives as long as the process: nothing frees its address."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._wanted = _Allocation(type=_PINNED, location=_Location(_ON_DEVICE, _index(device)))
        granularity = ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(self._wanted), _MINIMUM)
        self._size = ctypes.c_size_t(-(-num_bytes // granularity.value) * granularity.value)
        self._address, self._handle = ctypes.c_uint64(), ctypes.c_uint64()
        _call("cuMemAddressReserve", ctypes.byref(self._address), self._size, _SIZE_0, ctypes.c_uint64(), _FLAGS_0)
        self.bring_back()
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (self._address.value, False),
            "version": 3,
        }
        with torch.cuda.device(device):
            self.bytes: Tensor = torch.as_tensor(self, device=device)
        assert self.bytes.data_ptr() == self._address.value, "a tensor of the memory, not of a copy"

    def remove(self) -> None:
        torch.cuda.synchronize()
        _call("cuMemUnmap", self._address, self._size)
        _call("cuMemRelease", self._handle)
        self._handle.value = 0

    def bring_back(self) -> None:
        if self._handle.value != 0:
            return
        _call("cuMemCreate", ctypes.byref(self._handle), self._size, ctypes.byref(self._wanted), _FLAGS_0)
        _call("cuMemMap", self._address, self._size, _SIZE_0, self._handle, _FLAGS_0)
        access = _Access(location=self._wanted.location, flags=_READ_WRITE)
        _call("cuMemSetAccess", self._address, self._size, ctypes.byref(access), ctypes.c_size_t(1))


# The driver's structures and constants, as cuda.h has them.


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Allocation(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_PINNED, _ON_DEVICE, _MINIMUM, _READ_WRITE = 1, 1, 0, 3
_SIZE_0, _FLAGS_0 = ctypes.c_size_t(), ctypes.c_uint64()
_OUT_OF_MEMORY = 2


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(function: str, *arguments: Any) -> None:
    status = getattr(_driver(), function)(*arguments)
    if status == _OUT_OF_MEMORY:
        free, total = torch.cuda.mem_get_info()
        raise CapacityError(
            f"The GPU has {free / 2**30:.1f} of {total / 2**30:.1f} GiB free, which is not enough. Stop other programs "
            "that use it."
        )
    if status != 0:
        raise RuntimeError(f"CUDA: {function} failed with status {status}.")


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
