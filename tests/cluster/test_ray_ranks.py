"""Ranks on the nodes of a Ray cluster: the same answers as on one machine, and the same end."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facet.config import EngineConfig
from facet.engine.client import RemoteEngine
from facet.engine.local_engine import LocalEngine
from facet.errors import ConfigError, EngineDeadError
from tests.engine.test_process import SETTINGS, collect, request
from tests.tiny_models import TinyModel
from tests.tokens.gemma_like import write_tokenizer_folder


@pytest.fixture(scope="module")
def config(
    tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory, cluster: Any
) -> EngineConfig:
    folder = tmp_path_factory.mktemp("ranks")
    for path in tiny_model("gemma4_e2b_small").folder.iterdir():
        (folder / path.name).symlink_to(path)
    write_tokenizer_folder(folder)
    return EngineConfig(
        model=str(folder),
        tensor_parallel_size=2,
        distributed_executor_backend="ray",
        **SETTINGS,  # type: ignore[arg-type]
    )


def tokens_of(engine: RemoteEngine | LocalEngine) -> list[tuple[int, ...]]:
    engine.submit(request("plain", 40, max_tokens=6))
    return [message.token_ids for message in collect(engine, {"plain"})["plain"]]


@pytest.fixture
def one_place_on_each_node(cluster: Any) -> Iterator[None]:
    import ray

    ray.init(address="auto", ignore_reinit_error=True)
    taken = ray.util.placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
    assert taken.wait(60)
    yield
    ray.util.remove_placement_group(taken)


def test_ranks_on_two_nodes_answer_as_one_process_does_and_end_together(
    config: EngineConfig, one_place_on_each_node: None
) -> None:
    import ray

    expected = tokens_of(LocalEngine(replace(config, tensor_parallel_size=1, distributed_executor_backend="mp")))
    with contextlib.closing(RemoteEngine(config)) as engine:
        assert tokens_of(engine) == expected
        assert ray.available_resources().get("CPU", 0) == 0, "each rank has the last place on its node"
        engine.submit(request("doomed", 5, max_tokens=500))
        engine.receive(timeout=60)
        os.kill(engine.process_ids[1], signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EngineDeadError, match=r"rank 1 on node .* ended unexpectedly"):
            list(iter(engine.receive, None))
        assert time.monotonic() - killed < 20
        with pytest.raises(EngineDeadError):
            engine.submit(request("late", 5))
    deadline = time.monotonic() + 20
    while ray.available_resources().get("CPU") != 2:
        assert time.monotonic() < deadline, "ranks or their places are left behind"
        time.sleep(0.2)


def test_what_cannot_be(config: EngineConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tensor-parallel-size 8 needs 8 CPUs, but the Ray cluster has 4"):
        RemoteEngine(replace(config, tensor_parallel_size=8))
    with pytest.raises(ConfigError, match="--device cuda:1 names one GPU"):
        RemoteEngine(replace(config, device="cuda:1"))
    with pytest.raises(ConfigError, match="nothing-here' is neither a folder nor the name of a model"):
        RemoteEngine(replace(config, model=str(tmp_path / "nothing-here")))
