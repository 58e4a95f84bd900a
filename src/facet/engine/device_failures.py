"""Turns the errors of a GPU at start-up into one line that also says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from facet.errors import CapacityError, DeviceError, FacetError


@contextmanager
def device_failures_in_words() -> Iterator[None]:
    """Turns what torch, a driver or Triton raises while an engine starts into a `UserError`."""
    try:
        yield
    except FacetError:
        raise
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        raise CapacityError(
            f"The GPU ran out of memory while starting: {_first_line(error)} It has {total / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB of it free now. Lower --gpu-memory-utilization or --max-num-batched-tokens, or "
            "stop other programs that use it."
        ) from error
    except Exception as error:
        if not _is_of_a_gpu(error):
            raise
        raise DeviceError(
            f"The GPU failed while starting, with {type(error).__name__}: {_first_line(error)} Check the driver "
            "with nvidia-smi; --enforce-eager runs without captured graphs, --device cpu without a GPU."
        ) from error


def _is_of_a_gpu(error: Exception) -> bool:
    """Whether an error is a GPU's. Triton's own errors are known by where they come from: a machine without a GPU need
    not have it."""
    if type(error).__module__.split(".")[0] == "triton":
        return True
    return isinstance(error, RuntimeError) and any(
        word in str(error) for word in ("CUDA", "cuBLAS", "CUBLAS", "NVIDIA")
    )


def _first_line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "it gave no reason")
    return line if line.endswith(".") else line + "."
