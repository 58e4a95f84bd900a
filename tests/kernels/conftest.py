"""One thread, and a quicker interpreter of Triton."""

import contextlib
import importlib.util
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
    with quick_interpreter() if importlib.util.find_spec("triton") else contextlib.nullcontext():
        yield
