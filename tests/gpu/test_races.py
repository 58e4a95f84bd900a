"""Triton's detector finds no race in kernels in Gluon, but for those it cannot follow (`race_check.py`), and finds one
that was planted."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

NAMES = (
    "shared_512",
    "separate_512",
    "separate_256",
    "window",
    "decode_separate",
    "decode_shared",
    "int4",
    "int4_ring",
    "int4_ring_16",
    "int4_wide",
    "int8_groups",
    "int8_groups_ring",
    "int8_groups_wide",
    "ring",
    "fp8_ring",
    "planted",
)
SECONDS = 500  # compiling takes long beside tests that need all processors

pytestmark = [
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="the kernels are for Hopper"
    ),
    pytest.mark.xdist_group("races"),  # in a single process of pytest's, which begins them all
]


@pytest.fixture(scope="module")
def checks() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All at the same time: most of it is compiling."""
    how = {"TRITON_INSTRUMENTATION_MODE": "consan", "CUDA_LAUNCH_BLOCKING": "1"}
    environment = {**os.environ, **how, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.race_check", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for name in NAMES
    }
    yield processes
    for process in processes.values():
        with process:  # what no test waited for
            process.kill()


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("name", NAMES)
def test_races(name: str, checks: dict[str, subprocess.Popen[str]]) -> None:
    said, _ = checks[name].communicate(timeout=SECONDS)
    if name == "planted":
        assert checks[name].returncode != 0
        assert "with pending access" in said or "outstanding" in said, said[-3000:]  # Triton 3.6, or later
    else:
        assert checks[name].returncode == 0, said[-3000:]
