"""Servers to run against: fake ones, and Facet's own by the fixtures of the server's tests."""

import pytest

from tests.bench.small_runs import Bench, make_bench
from tests.server.conftest import model_folder, scripted, tokenizer

__all__ = ["bench", "model_folder", "scripted", "tokenizer"]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    return make_bench(capsys)
