"""Which GPU a context is made on, and that nothing but time depends on it."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from facet.engine import gpu_context
from facet.engine.gpu_context import begin_context
from facet.ranks import ALONE, Rank


@pytest.fixture
def torch_for_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libtorch_cuda.so"
    library.touch()
    monkeypatch.setattr(gpu_context, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    return library


def made(device: str, rank: Rank) -> None:
    thread = begin_context(device, rank)
    assert thread is not None
    thread.join()


@pytest.mark.parametrize(
    ("device", "rank", "index"),
    [("auto", ALONE, 0), ("cuda", Rank(index=1, size=2), 1), ("cuda:3", ALONE, 3)],
)
def test_it_is_the_one_of_the_rank(
    device: str, rank: Rank, index: int, torch_for_gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []

    def get_device(place: Any, ordinal: ctypes.c_int) -> int:
        calls.append(("get", ordinal.value))
        place._obj.value = 10 + ordinal.value
        return 0

    driver = SimpleNamespace(
        cuInit=lambda flags: calls.append(("init", flags.value)) or 0,
        cuDeviceGet=get_device,
        cuDevicePrimaryCtxRetain=lambda place, device: calls.append(("retain", device.value)) or 0,
    )
    monkeypatch.setattr(gpu_context.ctypes, "CDLL", lambda name: driver)
    made(device, rank)
    assert calls == [("init", 0), ("get", index), ("retain", 10 + index)]


def test_a_driver_that_is_missing_or_fails_is_left_to_others(
    torch_for_gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_context, "_DRIVER", "libnosuchdriver.so.1")
    made("cuda", ALONE)
    monkeypatch.setattr(gpu_context.ctypes, "CDLL", lambda name: SimpleNamespace(cuInit=lambda flags: 100))
    made("cuda", ALONE)


def test_there_is_none_where_nothing_is_computed_on_gpus(torch_for_gpus: Path) -> None:
    assert begin_context("cpu", ALONE) is None
    torch_for_gpus.unlink()
    assert begin_context("auto", ALONE) is None
