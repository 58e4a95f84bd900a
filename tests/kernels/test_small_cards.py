"""Kernels fit on cards with less shared memory than the one they are tuned for."""

import json
import os
import subprocess
import sys

import pytest
import torch

from facet.kernels.shared_memory import HOPPER_BYTES, fitting_stages, shared_bytes

pytest.importorskip("triton")

SECONDS = 900


@pytest.mark.timeout(SECONDS)
@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled for other cards, which needs no GPU")
def test_kernels_fit_in_99_kilobytes() -> None:
    """As many as a program has on an RTX 3090, an L4 or an RTX 4090. The first of them is the oldest."""
    room = 101_376
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tests.kernels.compile_for_small_cards", "86", str(room)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    expected = {
        "_decode_kernel",
        "in_turn_kernel",
        "_separate_kernel",
        "_shared_kernel",
        "_few_rows_kernel",
        "any_format_kernel",
        "_widen_kernel",
        "_dequantize_kernel",
        "shuffled_kernel",
        "_grouped_kernel",
        "narrow_few_rows_kernel",
        "narrow_rows_kernel",
        "widen_rows_kernel",
        "widen_to_geglu_kernel",
    }
    assert expected <= {kernel["kernel"] for kernel in found}
    assert [kernel for kernel in found if kernel["shared"] > room] == []


def test_stages_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    assert shared_bytes(device) == HOPPER_BYTES
    assert fitting_stages(4, 40_000, device) == 4
    monkeypatch.setattr("facet.kernels.shared_memory.shared_bytes", lambda _device: 101_376)
    assert fitting_stages(4, 40_000, device) == 2
    assert fitting_stages(4, 200_000, device) == 1, "as few as can be; whether they fit is another question"
