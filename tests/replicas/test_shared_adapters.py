"""Adapters that come and go while replicas serve: all have the same, those that start later, too."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from facet.adapter import AdapterSource
from facet.replicas import shared_adapters
from facet.replicas.connection import ReplicaAddress
from facet.replicas.replica_set import ReplicaSet
from facet.replicas.shared_adapters import LOAD, UNLOAD, SharedAdapters
from tests.replicas.conftest import proxied
from tests.server.conftest import Scripted
from tests.server.running import RunningServer, wait_until
from tests.server.scripted_engine import ScriptedEngine

POET = {"lora_name": "poet", "lora_path": "poet"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("poet", "clerk"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    return tmp_path


@contextlib.contextmanager
def two_replicas(
    scripted: Scripted, root: Path, *more_ports: int, key: str | None = None, **engine: Any
) -> Iterator[tuple[RunningServer, list[ScriptedEngine], SharedAdapters]]:
    replicas, keys = ReplicaSet(), (key,) if key else ()
    adapters = SharedAdapters(replicas, key=key, at_start=engine.get("adapters", ()))
    settings: dict[str, Any] = {"allowed_lora_path": str(root), "api_key": keys}
    with (
        scripted("one", engine=engine, **settings) as (first, one),
        scripted("one", engine=engine, **settings) as (second, two),
        proxied(first.port, second.port, *more_ports, replicas=replicas, adapters=adapters, **settings) as (proxy, _),
    ):
        yield proxy, [one, two], adapters


def said(proxy: RunningServer, path: str, body: dict[str, Any], **options: Any) -> tuple[int, str]:
    answer = proxy.post(path, body, **options)
    return answer.status_code, answer.text if answer.status_code == 200 else answer.json()["error"]["message"]


def joined(adapters: SharedAdapters, server: RunningServer) -> None:
    """Has a replica start that is not known yet."""

    async def join() -> None:
        async with adapters.joining("late", ReplicaAddress(host="127.0.0.1", port=server.port)):
            pass

    asyncio.run(join())


def test_what_one_loads_all_do(scripted: Scripted, root: Path) -> None:
    with two_replicas(scripted, root) as (proxy, engines, _):
        added = proxy.post(LOAD, POET)
        assert added.text == "Success: LoRA adapter 'poet' added successfully."
        assert added.headers["content-type"] == "text/plain; charset=utf-8"
        assert [engine.adapters for engine in engines] == [{"poet": str(root / "poet")}] * 2
        assert said(proxy, LOAD, POET)[1].startswith("The adapter 'poet' is loaded already.")
        assert said(proxy, LOAD, {**POET, "lora_path": "clerk", "load_inplace": True})[0] == 200
        assert [engine.adapters for engine in engines] == [{"poet": str(root / "clerk")}] * 2
        asks = [proxy.post("/v1/completions", {"prompt": str(i), "model": "poet"}).status_code for i in range(6)]
        assert asks == [200] * 6

        removed = "Success: LoRA adapter 'poet' removed successfully."
        assert said(proxy, UNLOAD, {"lora_name": "poet"}) == (200, removed)
        assert [engine.adapters for engine in engines] == [{}, {}]
        assert said(proxy, UNLOAD, {"lora_name": "poet"}) == (404, "There is no adapter 'poet'. Loaded: none.")


def test_what_one_cannot_load_none_has(scripted: Scripted, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with two_replicas(scripted, root) as (proxy, engines, _):
        engines[1].cannot_load = "There is no room."
        for body in (POET, {**POET, "load_inplace": True}):
            assert said(proxy, LOAD, body) == (400, "There is no room.")
            assert [engine.adapters for engine in engines] == [{}, {}]
        assert caplog.messages == [
            "The adapter poet could not be loaded by all replicas: the others unload it.",
            "The adapter poet could not be replaced on all replicas: it is unloaded.",
        ]
        engines[1].cannot_load = None
        assert said(proxy, LOAD, POET)[0] == 200
        engines[1].cannot_load = "It is broken."
        assert said(proxy, LOAD, {**POET, "load_inplace": True})[0] == 400
        assert [engine.adapters for engine in engines] == [{}, {}]


def test_one_that_a_replica_lacks_is_not_taken_from_the_others(scripted: Scripted, root: Path) -> None:
    """It could not load it when it started again."""
    with two_replicas(scripted, root) as (proxy, engines, _):
        assert said(proxy, LOAD, POET)[0] == 200
        engines[1].adapters.clear()
        assert said(proxy, LOAD, {"lora_name": "clerk", "lora_path": "clerk"})[0] == 200  # it says what it has
        assert said(proxy, LOAD, POET)[1].startswith("The adapter 'poet' is loaded already.")
        assert [list(engine.adapters) for engine in engines] == [["poet", "clerk"], ["clerk"]]
        assert said(proxy, LOAD, {**POET, "load_inplace": True})[0] == 200
        assert [sorted(engine.adapters) for engine in engines] == [["clerk", "poet"]] * 2


def test_a_replica_that_says_nothing_holds_up_nobody(
    scripted: Scripted, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_adapters, "_MOST_SECONDS", 0.3)
    silence = socket.create_server(("127.0.0.1", 0))
    with silence, two_replicas(scripted, root, silence.getsockname()[1]) as (proxy, engines, adapters):
        assert said(proxy, LOAD, POET) == (503, "A replica has not answered within 0.3 seconds. Try again later.")
        assert [engine.adapters for engine in engines] == [{}, {}]
        for engine in engines:
            engine.load_adapter(AdapterSource("poet", str(root / "poet")))
        wait_until(lambda: proxy.get("/v1/models").text.count("poet") > 0)
        assert said(proxy, UNLOAD, {"lora_name": "poet"})[0] == 503
        assert [engine.adapters for engine in engines] == [{}, {}], "the others have done it"
        assert not adapters._turn.locked()


def test_what_came_and_went_is_forgotten(scripted: Scripted, root: Path) -> None:
    with two_replicas(scripted, root) as (proxy, _, adapters):
        for number in range(3):
            name = {"lora_name": f"step{number}"}
            assert said(proxy, LOAD, {**name, "lora_path": "nobody", "load_inplace": True})[0] == 404
            assert said(proxy, LOAD, {**name, "lora_path": "poet"})[0] == 200
            assert said(proxy, UNLOAD, name)[0] == 200
        assert not adapters._changes


def test_what_all_refuse_changes_nothing(scripted: Scripted, root: Path) -> None:
    with two_replicas(scripted, root) as (proxy, engines, _):
        for body, status, words in (
            ({"lora_name": "poet", "lora_path": "nobody"}, 404, "There is no folder 'nobody' with an adapter."),
            ({"lora_name": "poet"}, 400, "lora_path is required."),
            ({"lora_name": 5, "lora_path": "poet"}, 400, "lora_name: expected str, got int."),
            ({"lora_name": "poet", "lora_path": "../.."}, 400, "lora_path must name a folder inside"),
        ):
            found = said(proxy, LOAD, body)
            assert (found[0], found[1][: len(words)]) == (status, words)
        with proxy.client() as client:
            assert "not valid JSON" in client.post(LOAD, content=b"{").text
        assert [engine.adapters for engine in engines] == [{}, {}]


@pytest.mark.parametrize("stays", [True, False])
def test_one_that_was_to_be_replaced(scripted: Scripted, root: Path, stays: bool) -> None:
    """It stays on all replicas, or its place was needed and it is gone from all."""
    with two_replicas(scripted, root) as (proxy, engines, adapters):
        assert said(proxy, LOAD, POET)[0] == 200
        for engine in engines:
            engine.cannot_load, engine.loses_what_it_replaces = "It is broken.", not stays
        assert said(proxy, LOAD, {**POET, "load_inplace": True})[0] == 400
        assert [list(engine.adapters) for engine in engines] == [["poet"] if stays else []] * 2
        with scripted("one", allowed_lora_path=str(root)) as (late, engine):
            joined(adapters, late)
            assert list(engine.adapters) == (["poet"] if stays else [])


def test_a_replica_that_starts_later(scripted: Scripted, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it has from its start goes where it went, and comes from where it came from last."""
    start = {"adapters": {"old": "/adapters/old", "poet": "/adapters/poet"}}
    with two_replicas(scripted, root, key="secret", **start) as (proxy, _, adapters):
        for path, body in (
            (UNLOAD, {"lora_name": "old"}),
            (UNLOAD, {"lora_name": "poet"}),
            (LOAD, POET),
            (LOAD, {"lora_name": "clerk", "lora_path": "clerk"}),
            (LOAD, {"lora_name": "brief", "lora_path": "clerk"}),
            (UNLOAD, {"lora_name": "brief"}),
        ):
            assert said(proxy, path, body, headers={"authorization": "Bearer secret"})[0] == 200
        late = partial(scripted, "one", engine=start, allowed_lora_path=str(root), api_key=("secret",))
        with late() as (server, engine):
            joined(adapters, server)
            assert engine.adapters == {name: str(root / name) for name in ("poet", "clerk")}
        with late() as (server, engine), caplog.at_level(logging.ERROR):
            engine.cannot_load = "It is broken."
            joined(adapters, server)
            assert engine.adapters == {"poet": "/adapters/poet"}
    assert [line.partition(":")[0] for line in caplog.messages] == [
        f"Replica late cannot load the adapter {name} again" for name in ("poet", "clerk")
    ]


def test_replicas_that_end_meanwhile(
    scripted: Scripted, root: Path, misbehaving: Callable[[bytes | None], int], caplog: pytest.LogCaptureFixture
) -> None:
    """They are told when they start again."""
    with two_replicas(scripted, root, misbehaving(b""), misbehaving(None)) as (proxy, engines, adapters):
        assert said(proxy, LOAD, POET)[0] == 200
        assert [list(engine.adapters) for engine in engines] == [["poet"]] * 2

        async def join() -> None:
            async with adapters.joining("late", ReplicaAddress(host="127.0.0.1", port=misbehaving(None))):
                pass

        asyncio.run(join())
        assert caplog.messages == ["Replica late ended while it loaded its adapters."]
    replicas = ReplicaSet()
    nobody = SharedAdapters(replicas)
    settings = {"replicas": replicas, "adapters": nobody, "allowed_lora_path": str(root)}
    with proxied(misbehaving(None), **settings) as (proxy, _):
        assert said(proxy, LOAD, POET) == (503, "No replica is running now. Try again later.")


def test_only_who_has_a_key_and_only_with_the_flag(scripted: Scripted, root: Path) -> None:
    with two_replicas(scripted, root, key="secret") as (proxy, engines, _):
        assert proxy.post(LOAD, POET).status_code == 401
        assert not engines[0].adapters
    with scripted("one") as (replica, _), proxied(replica.port) as (proxy, _):
        refused = said(proxy, LOAD, POET)
        assert refused[0] == 404
        assert "Start it with --allowed-lora-path" in refused[1]
