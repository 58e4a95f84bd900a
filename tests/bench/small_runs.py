"""A run against a fake server, and what it printed."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from facet.bench.config import BenchConfig
from facet.bench.serve import bench_serve
from tests.bench.fake_server import Answer, Call, FakeServer, fake_server

SMALL: dict[str, Any] = dict(num_prompts=6, random_input_len=5, random_output_len=4, disable_tqdm=True)

# Exit code, table by row, standard error, and the server that was asked.
Run = tuple[int, dict[str, str], str, FakeServer]
Bench = Callable[..., Run]


async def complete(call: Call) -> None:
    await call.completion()


def bodies(server: FakeServer) -> list[Any]:
    return [asked.body for asked in server.asked]


def make_bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    def run(answer: Answer, **settings: Any) -> Run:
        with fake_server(answer) as server:
            code = bench_serve(BenchConfig(**{"port": server.port, **SMALL, **settings}))
        # The first request only tries whether such requests are taken.
        server.asked.pop(0)
        captured = capsys.readouterr()
        rows = re.findall(r"^(.*?):? {2,}(\S+)\s*$", captured.out, flags=re.MULTILINE)
        return code, {name.strip().rstrip(":"): value for name, value in rows}, captured.err, server

    return run
