"""Replicas as a Ray Serve application: updated one by one, and on nodes that die, under load."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from facet.cli import main
from facet.cluster.config import DeployConfig
from facet.cluster.deploying import start_replicas, start_serve
from facet.cluster.proxy import make_proxy_for
from facet.cluster.replica import ServerThread
from tests.cluster.stand_in import SECONDS_PER_TOKEN, StandInReplica
from tests.tokens.gemma_like import write_tokenizer_folder

NUM_TOKENS = 20
NUM_CLIENTS = 6
WHOLE, BROKEN = "whole", "broken off, with an error"


@pytest.fixture(scope="module")
def config(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> DeployConfig:
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer_folder(folder, adds_bos=True)
    return DeployConfig(
        model=str(folder), served_model_name=("m",), disable_log_stats=True, device="cpu", host="127.0.0.1", port=0,
        data_parallel_size=3, shutdown_timeout=20, name="test",
    )  # fmt: skip


@pytest.fixture(scope="module")
def address(config: DeployConfig) -> Iterator[str]:
    """Of a proxy with three replicas."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("facet.cluster.application.Replica", StandInReplica)
        serve = start_serve()
        start_replicas(serve, config)
        proxy = ServerThread(config, make_proxy_for(config, config.name))
        yield f"http://127.0.0.1:{proxy.port}"
        proxy.stop()
        serve.delete(config.name)


def names_of(address: str) -> set[str]:
    """Of the replicas that take requests."""
    lines = httpx.get(f"{address}/metrics", timeout=30).text.splitlines()
    return {line.split('"')[1] for line in lines if line.startswith("facet:replica_ready{") and line.endswith(" 1.0")}


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


async def ask(client: httpx.AsyncClient, number: int) -> str:
    """How an answer ended. Whatever is neither whole nor refused in words is an error of the test."""
    body = {"model": "m", "prompt": f"{number} and on", "max_tokens": NUM_TOKENS, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        text = (await response.aread()).decode()
    if response.status_code != 200:
        return f"{response.status_code}: {text}"
    if '"error"' in text:
        assert text.count("data: ") > 1, "it had begun"
        return BROKEN
    assert text.endswith("data: [DONE]\n\n"), text
    return WHOLE


@asynccontextmanager
async def load(address: str) -> AsyncIterator[Counter[str]]:
    """Clients that ask one thing after the other, while something happens."""
    outcomes: Counter[str] = Counter()
    is_over = asyncio.Event()

    async def keep_asking(number: int, client: httpx.AsyncClient) -> None:
        while not is_over.is_set():
            outcomes[await ask(client, number)] += 1

    async with httpx.AsyncClient(base_url=address, timeout=100) as client, asyncio.TaskGroup() as clients:
        for number in range(NUM_CLIENTS):
            clients.create_task(keep_asking(number, client))
        await asyncio.sleep(NUM_TOKENS * SECONDS_PER_TOKEN)
        yield outcomes
        await asyncio.sleep(NUM_TOKENS * SECONDS_PER_TOKEN)
        is_over.set()


def test_an_update_replaces_all_replicas_and_no_request_fails(address: str, config: DeployConfig) -> None:
    wait_for(lambda: len(names_of(address)) == 3, "three replicas take requests")
    before = names_of(address)

    async def run() -> Counter[str]:
        async with load(address) as outcomes:
            await asyncio.to_thread(start_replicas, start_serve(), config)
        return outcomes

    outcomes = asyncio.run(run())
    assert outcomes.keys() == {WHOLE}, outcomes
    assert outcomes[WHOLE] > NUM_CLIENTS
    wait_for(lambda: len(names_of(address)) == 3, "three replicas take requests again")
    assert not names_of(address) & before


def test_strangers_cannot_use_replicas_and_other_weights_are_refused(
    address: str, config: DeployConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ray import serve

    (status, *_) = serve.get_deployment_handle("Replica", config.name).broadcast("status").results()
    answer = httpx.get(f"http://{status.address.host}:{status.address.port}/v1/models", timeout=30)
    assert answer.status_code == 403
    from facet.cluster import application

    expected = application.expected_facts(config)
    monkeypatch.setattr(application, "expected_facts", lambda config: replace(expected, digest="other"))
    monkeypatch.setattr(application, "Replica", StandInReplica)
    flags = ["--name", "other", "--device", "cpu", "--port", "0", "--host", "127.0.0.1"]
    assert main(["deploy", config.model, *flags]) == 2
    assert f"The files in {config.model} differ between" in capsys.readouterr().err
    assert "other" not in serve.status().applications


def test_a_node_that_dies_takes_only_the_answers_it_had_begun(address: str, config: DeployConfig, cluster: Any) -> None:
    (node,) = cluster.worker_nodes

    async def run() -> Counter[str]:
        async with load(address) as outcomes:
            await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)
            await asyncio.sleep(5)
        return outcomes

    outcomes = asyncio.run(run())
    assert outcomes.keys() <= {WHOLE, BROKEN}, outcomes
    assert outcomes[BROKEN] <= NUM_CLIENTS, "each client had one answer under way"
    assert outcomes[WHOLE] > NUM_CLIENTS
    wait_for(lambda: len(names_of(address)) == 2, "two replicas have room on the other node")
