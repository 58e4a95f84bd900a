"""What is said before anything is deployed, how many replicas a load needs, and who may use a replica."""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from facet.cli import main
from facet.cluster.application import num_wanted, proxy_config, read_deploy_config
from facet.cluster.config import DeployConfig
from facet.cluster.replica import REQUESTS, Gate, ServerThread
from facet.config import ServerConfig
from facet.errors import ConfigError
from facet.replicas.connection import ReplicaAddress, ReplicaClient


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(data_parallel_size=0), "--data-parallel-size is 0, but must be 1 or more"),
        (
            dict(data_parallel_size=4, max_replicas=2),
            "--max-replicas is 2, but --data-parallel-size asks for at least 4",
        ),
        (dict(target_requests=0), "--target-requests is 0, but must be 1 or more"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_deploy_config(DeployConfig(**settings))


def test_settings_of_a_file() -> None:
    config = read_deploy_config({"data_parallel_size": 2, "api_key": ["a", "b"]})
    assert config.api_key == ("a", "b")
    assert config.model, "the bundled model, if none is named"
    with pytest.raises(ConfigError, match="facet deploy has no setting replicas"):
        read_deploy_config({"replicas": 2})


def test_a_proxy_stays_unless_its_own_settings_change() -> None:
    before = DeployConfig(model="a", port=80, data_parallel_size=2)
    assert proxy_config(DeployConfig(model="b", port=80, data_parallel_size=3, max_num_seqs=4)) == proxy_config(before)
    assert proxy_config(DeployConfig(model="a", port=81)) != proxy_config(before)


@pytest.mark.parametrize("command", [["deploy"], ["serve", "--data-parallel-backend", "ray"]])
def test_without_ray(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    assert main([*command, "--port", "0", "--host", "127.0.0.1"]) == 2
    assert capsys.readouterr().err == (
        "error: Ray is not installed, which this needs: pip install 'facet-llm[cluster]'.\n"
    )


@pytest.mark.parametrize(
    ("requests", "wanted"), [({}, 0), ({"a": 0.0}, 0), ({"a": 31.0, "b": 2.0}, 2), ({"a": 65.0}, 3)]
)
def test_as_many_replicas_as_requests_need(requests: dict[str, float], wanted: int) -> None:
    config = SimpleNamespace(target_ongoing_requests=32)
    assert num_wanted(SimpleNamespace(aggregated_metrics={REQUESTS: requests}, config=config)) == (wanted, {})


def test_a_replica_takes_requests_with_its_secret_only_and_finishes_them_before_it_ends() -> None:
    is_inside, may_end = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            return await send({"type": "lifespan.shutdown.complete"})
        is_inside.set()
        while not may_end.is_set():
            await asyncio.sleep(0.01)
        await PlainTextResponse("done")(scope, receive, send)

    async def run() -> None:
        gate = Gate(app, "secret")
        server = ServerThread(ServerConfig(host="127.0.0.1", port=0), gate)
        strangers = [ReplicaAddress(host="127.0.0.1", port=server.port, secret=secret) for secret in ("", "guess")]
        for address in strangers:
            assert (await ReplicaClient(address).ask("/"))[0] == 403
        assert gate.num_requests == 0
        friend = ReplicaClient(ReplicaAddress(host="127.0.0.1", port=server.port, secret="secret"))
        asked = asyncio.create_task(friend.ask("/"))
        while not is_inside.is_set():
            await asyncio.sleep(0.01)
        assert gate.num_requests == 1
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        await asyncio.sleep(0.2)
        assert not stopping.done()
        may_end.set()
        assert await asked == (200, b"done")
        await stopping
        assert not server.is_running

    asyncio.run(run())
