"""Tests that need a GPU. Elsewhere they are skipped: there the kernels run in Triton's interpreter, one by one."""

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a GPU")
        for item in items:
            if "tests/gpu" in str(item.path):
                item.add_marker(skip)
