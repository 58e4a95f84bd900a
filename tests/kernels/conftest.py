"""One thread, and a quicker interpreter of Triton."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator

import pytest
import torch

from tests.kernels.quick_interpreter import quick_interpreter


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """The tensors here are small, and on a busy machine threads would mostly wait for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="package", autouse=True)
def _quick_interpreter() -> Iterator[None]:
    """On a GPU, Triton's language stays as it is for the compiler."""
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton")
    with quick_interpreter() if is_interpreted else contextlib.nullcontext():
        yield
