"""A kernel that is compiled after the start is named in a line."""

import logging
from types import SimpleNamespace

import pytest

from facet.runner.late_kernels import report_late_kernels

triton = pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.compilation, "listener", None)


@pytest.mark.parametrize(
    ("cache_hit", "level", "said"),
    [
        (False, logging.INFO, "Compiled a kernel after the start: _decode_kernel, 1.5 s, while requests waited."),
        (True, logging.INFO, ""),
        (True, logging.DEBUG, "Loaded a kernel after the start: _decode_kernel ({(3,): 16}, {})"),
    ],
)
def test_said(cache_hit: bool, level: int, said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(level)
    report_late_kernels()
    triton.knobs.compilation.listener(
        src=SimpleNamespace(name="_decode_kernel", constants={(3,): 16}, attrs={}),
        metadata={},
        metadata_group={},
        times=SimpleNamespace(total=1_500_000),
        cache_hit=cache_hit,
    )
    assert "\n".join(record.getMessage() for record in caplog.records) == said
