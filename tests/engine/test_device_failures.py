"""What a GPU's failures at start-up become."""

import pytest
import torch

from facet.engine.device_failures import device_failures_in_words
from facet.errors import CapacityError, ConfigError, DeviceError


class CompilationError(Exception):
    """As Triton has one; told by its module."""


CompilationError.__module__ = "triton.compiler.errors"


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("CUDA error: unspecified launch failure\nCompile with ..."),
        RuntimeError("The NVIDIA driver on your system is too old"),
        CompilationError("at 3:4: out of resources"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_failing_gpu_gets_one_line_with_what_to_do(failure: Exception) -> None:
    with pytest.raises(DeviceError, match="--device cpu") as caught, device_failures_in_words():
        raise failure
    assert str(failure).splitlines()[0] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_little_memory_names_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 << 30, 24 << 30))
    with pytest.raises(CapacityError, match=r"24\.0 GiB, 3\.0 GiB of it free"), device_failures_in_words():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


@pytest.mark.parametrize("failure", [KeyError("x"), RuntimeError("shape mismatch"), ConfigError("--dtype")])
def test_other_errors_stay_what_they_are(failure: Exception) -> None:
    with pytest.raises(type(failure)) as caught, device_failures_in_words():
        raise failure
    assert caught.value is failure
