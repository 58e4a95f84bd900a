"""Replicas in processes of their own: they are started, started again after a death, and restarted one by one."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from facet.cli import main
from facet.config import ServerConfig
from facet.errors import ConfigError
from facet.replicas.connection import ReplicaAddress
from facet.replicas.fleet import Fleet
from facet.replicas.placement import Placement
from facet.replicas.proxy_app import make_proxy_app
from facet.replicas.replica_set import ReplicaSet
from facet.replicas.run import serve_fleet
from facet.replicas.shared_adapters import LOAD, SharedAdapters
from facet.server.draining import DrainingServer
from facet.server.run import listening, uvicorn_config
from tests.replicas.stand_in import REFUSED, run_stand_in
from tests.tokens.gemma_like import write_tokenizer_folder

PLACEMENTS = (Placement(("0",)), Placement(("1",)))


def config_for(folder: Path, **settings: Any) -> ServerConfig:
    write_tokenizer_folder(folder, adds_bos=True)
    return ServerConfig(model=str(folder), served_model_name=("m",), disable_log_stats=True, **settings)


async def wait_until_ready(replicas: ReplicaSet, *names: str) -> None:
    async with asyncio.timeout(100):
        while set(replicas.router.ready) != set(names):
            await asyncio.sleep(0.01)


def test_replicas_come_back_and_no_request_fails(tmp_path: Path) -> None:
    """From start to stop: a death, then SIGHUP, then SIGTERM, while a client asks one thing after the other, in turns
    of the model, of an adapter that every replica has from its start, and of one that a request loaded."""
    (tmp_path / "adapters" / "clerk").mkdir(parents=True)
    config = config_for(
        tmp_path,
        host="127.0.0.1",
        port=0,
        lora_modules=("poet=/adapters/poet",),
        allowed_lora_path=str(tmp_path / "adapters"),
    )
    replicas = ReplicaSet()
    adapters = SharedAdapters(replicas, at_start=("poet",))
    fleet = Fleet(config, replicas, PLACEMENTS, tmp_path, adapters=adapters, target=run_stand_in)
    server = DrainingServer(uvicorn_config(config, make_proxy_app(config, replicas, adapters=adapters)))
    statuses: list[int] = []

    async def ask(client: httpx.AsyncClient, salt: int) -> str:
        name = ("m", "poet", "clerk")[salt % 3]
        body = {"prompt": "a", "cache_salt": str(salt), "max_tokens": 2, "model": name}
        response = await client.post("/v1/completions", json=body)
        statuses.append(response.status_code if response.json().get("model") == name else 0)
        return str(response.json()["choices"][0]["text"])

    async def ask_always(client: httpx.AsyncClient) -> None:
        for salt in range(1 << 30):
            await ask(client, salt)
            await asyncio.sleep(0.02)

    async def live(listener: socket.socket) -> None:
        serving = asyncio.create_task(serve_fleet(fleet, server, listener, config))
        await wait_until_ready(replicas, "0", "1")
        while not server.started:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            loaded = await client.post(LOAD, json={"lora_name": "clerk", "lora_path": "clerk"})
            assert loaded.status_code == 200, loaded.text
            assert len({await ask(client, salt) for salt in range(9)}) == 2, "each has a GPU of its own"
            asking = asyncio.create_task(ask_always(client))
            first = fleet._posts[0].process
            assert first is not None
            first.kill()
            await wait_until_ready(replicas, "1")
            await wait_until_ready(replicas, "0", "1")
            before = [post.process for post in fleet._posts]
            os.kill(os.getpid(), signal.SIGHUP)
            while fleet._roll is None:
                await asyncio.sleep(0.01)
            await fleet._roll
            last = [post.process for post in fleet._posts]
            assert not set(before) & set(last)
            assert set(replicas.router.ready) == {"0", "1"}
            asking.cancel()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await serving == 0
        assert [process and process._process.is_alive() for process in last] == [False, False]

    with listening(config) as listener:
        asyncio.run(live(listener))
    assert len(statuses) > 16, "nine, and many more meanwhile"
    assert set(statuses) == {200}
    assert not list(tmp_path.glob("[01]")), "sockets are removed"


def test_replicas_of_one_card_start_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the one before has all of its adapters: each takes its share of the memory on top of those that are
    there."""
    shares: list[float] = []

    class Started:
        def __init__(self, name: str, config: ServerConfig, *_: object, **__: object) -> None:
            shares.append(config.gpu_memory_utilization)

        async def wait_until_listening(self) -> None: ...

    class Loading(SharedAdapters):
        @contextlib.asynccontextmanager
        async def joining(self, name: str, address: ReplicaAddress) -> AsyncIterator[None]:
            await asyncio.sleep(0.05)
            yield

    async def live() -> None:
        replicas = ReplicaSet()
        config = ServerConfig(model="m", gpu_memory_utilization=0.45)
        fleet = Fleet(config, replicas, (Placement(("0",)),) * 2, tmp_path, adapters=Loading(replicas))
        await asyncio.gather(*(fleet._start(post) for post in fleet._posts))

    monkeypatch.setattr("facet.replicas.fleet.ReplicaProcess", Started)
    asyncio.run(live())
    assert shares == [0.45, 0.9]


def test_what_a_replica_refuses_the_fleet_does(tmp_path: Path) -> None:
    config = config_for(tmp_path, device=REFUSED)

    async def live() -> None:
        fleet = Fleet(config, ReplicaSet(), PLACEMENTS, tmp_path, target=run_stand_in)
        try:
            await fleet.start()
        finally:
            await fleet.stop()

    with pytest.raises(ConfigError, match=r"There is no such device\."):
        asyncio.run(live())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_while_replicas_load(number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for(tmp_path, host="127.0.0.1", port=0)
    replicas = ReplicaSet()
    fleet = Fleet(config, replicas, PLACEMENTS, tmp_path, target=run_stand_in)

    async def load() -> None:
        os.kill(os.getpid(), number)
        await asyncio.sleep(60)

    monkeypatch.setattr(fleet, "start", load)
    server = DrainingServer(uvicorn_config(config, make_proxy_app(config, replicas)))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
    try:
        with listening(config) as listener:
            if number == signal.SIGINT:
                with pytest.raises(KeyboardInterrupt):
                    asyncio.run(serve_fleet(fleet, server, listener, config))
            else:
                assert asyncio.run(serve_fleet(fleet, server, listener, config)) == 128 + number
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_port_that_is_taken_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code = main(
            ["serve", "-dp", "2", "--device", "cpu", "--host", "127.0.0.1", "--port", str(taken.getsockname()[1])]
        )
    assert code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "Address already in use" in line
