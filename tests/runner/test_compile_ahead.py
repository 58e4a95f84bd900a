"""Kernels are compiled once each, in other threads, and none is launched meanwhile."""

import threading
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from triton.runtime.jit import JITFunction

from facet.kernels.linear import chain
from facet.runner.compile_ahead import compiled_ahead


def copy_kernel(source: Any, target: Any, count: int, BLOCK: int) -> None:
    """Only its name and arguments matter here."""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Every run of a kernel: its arguments, whether it was only compiled, and by the test's own thread or another."""
    seen: list[tuple[Any, ...]] = []
    main = threading.get_ident()

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        seen.append((args[2], constants["BLOCK"], warmup, threading.get_ident() == main))
        if args[2] == 13:
            raise RuntimeError("this one cannot be compiled")

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    return seen


def test_each_kind_of_launch_is_compiled_once(runs: list[tuple[Any, ...]]) -> None:
    kernel: Any = JITFunction(copy_kernel)
    numbers = torch.zeros(64)
    with compiled_ahead():
        for _ in range(3):
            for count in (1, 16, 32, 7, 9, 2**40, 13):  # 16 and 32 are of one kind, and so are 7, 9 and 13
                kernel[(1,)](numbers, numbers, count, BLOCK=8)
        kernel[(1,)](numbers, numbers, 16, BLOCK=4)
        kernel[(1,)](numbers, numbers[1:], 16, BLOCK=8)
        kernel[(1,)](numbers.half(), numbers, 16, BLOCK=8)
    expected = [(1, 8), (16, 8), (7, 8), (2**40, 8), (16, 4), (16, 8), (16, 8)]
    assert sorted(run[:2] for run in runs) == sorted(expected)
    assert all(run[2:] == (True, False) for run in runs), "compiled only, and not by this thread"


def test_what_fails_ahead_fails_at_its_launch(runs: list[tuple[Any, ...]]) -> None:
    kernel: Any = JITFunction(copy_kernel)
    numbers = torch.zeros(64)
    with compiled_ahead():
        kernel[(1,)](numbers, numbers, 13, BLOCK=8)
    with pytest.raises(RuntimeError, match="cannot be compiled"):
        kernel[(1,)](numbers, numbers, 13, BLOCK=8)
    assert runs[-1] == (13, 8, False, True)


def test_nothing_is_concluded_from_results_that_were_never_computed(
    runs: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a library agrees with a kernel, for example."""
    weight = torch.zeros(6, 8)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(chain, "_least_rows", {})
    monkeypatch.setattr(chain, "_is_slow", lambda x, weight: False)
    monkeypatch.setattr(chain, "_is_one_chain", lambda x, weight: False)
    with compiled_ahead():
        assert chain.least_library_rows(weight) is None
    monkeypatch.setattr(chain, "_is_one_chain", lambda x, weight: True)
    assert chain.least_library_rows(weight) == 17
