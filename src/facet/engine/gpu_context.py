"""Makes the context of a GPU while a process imports, so that its first tensor need not wait for it.

A context takes the driver up to a second, in which Python can go on. Nothing depends on it: where it cannot be made,
whoever needs one makes it, and says what is wrong.
"""

import contextlib
import ctypes
import os
import threading
from importlib.util import find_spec
from pathlib import Path

from facet.ranks import Rank

_DRIVER = "libcuda.so.1"


def begin_context(device: str, rank: Rank) -> threading.Thread | None:
    """Begins the context of the GPU that the process of a rank will compute on. None: it will compute on none, as far
    as can be known without torch."""
    if device == "cpu" or not _computes_on_gpus():
        return None
    # As torch has it, which comes later: kernels of libraries are loaded when they are needed.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    thread = threading.Thread(target=_make_context, args=(_index_of(device, rank),), daemon=True)
    thread.start()
    return thread


def _index_of(device: str, rank: Rank) -> int:
    """The index of a rank's GPU: 1 for `cuda:1`; without a number, each rank has its own."""
    number = device.rpartition(":")[2]
    return int(number) if number.isdecimal() else rank.index


def _computes_on_gpus() -> bool:
    """Whether torch was built for it: an idle context would take hundreds of megabytes of a GPU."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    return (Path(torch.origin).parent / "lib" / "libtorch_cuda.so").exists()


def _make_context(index: int) -> None:
    """Makes the context that torch will find: each GPU has one for a whole process."""
    with contextlib.suppress(OSError, AttributeError):  # no driver, or a strange one
        driver = ctypes.CDLL(_DRIVER)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(ctypes.c_uint(0)) == 0 and driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index)) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
