"""What a cluster must have before ranks are started on it. None of it needs Ray; `make cluster` runs the rest."""

import contextlib
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from facet.config import EngineConfig
from facet.engine.addresses import Network, in_folder, over_network
from facet.engine.client import RemoteEngine
from facet.engine.ray_cluster import NodeFacts, check_alike, connect
from facet.engine.ray_ranks import RayRanks
from facet.engine.weights_digest import digest_of
from facet.errors import ConfigError
from tests.ports import closed_port

HERE = NodeFacts(host="10.0.0.1", process_id=1, facet="1.0", torch="2.11", model="/models/gemma", digest="abc")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(facet="0.9"), r"Node 10.0.0.2 of the Ray cluster has Facet 0.9, but this machine has 1.0."),
        (dict(torch="2.10"), r"has torch 2.10, but this machine has 2.11. Install the same version everywhere"),
        (dict(digest=None), r"Node 10.0.0.2 of the Ray cluster has no /models/gemma. Put the model at the same path"),
        (dict(digest="xyz"), r"The files in /models/gemma differ between this machine and node 10.0.0.2"),
    ],
)
def test_nodes_that_differ_are_refused(change: dict[str, str], message: str) -> None:
    there = replace(HERE, host="10.0.0.2")
    check_alike(HERE, [HERE, there])
    with pytest.raises(ConfigError, match=message):
        check_alike(HERE, [HERE, replace(there, **change)])


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ConfigError, match=r"Ray is not installed, which this needs: pip install 'facet-llm\[cluster\]'"
    ):
        RemoteEngine(EngineConfig(model="any", distributed_executor_backend="ray"))


def test_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = type(sys)("ray")
    ray.is_initialized = lambda: False  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    with closed_port() as port:
        address = f"127.0.0.1:{port}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ConfigError, match=f"No Ray cluster answers at {address} .RAY_ADDRESS.: Connection refused"):
            connect()


def test_ranks_that_cannot_be_watched_have_ended() -> None:
    """Else an engine whose cluster is gone would wait for its tokens for ever."""

    class Gone:
        def wait(self, runs: list[object]) -> None:
            raise RuntimeError("the cluster is gone")

    ranks = object.__new__(RayRanks)
    ranks._ray, ranks._runs, ranks._ended = Gone(), ["first", "second"], []
    ranks._hears, ranks._tells = socket.socketpair()
    with ranks._hears, ranks._tells:
        ranks._watch()
        assert ranks._hears.recv(1) == b"!"
        assert not ranks.all_run


def test_a_digest_changes_with_names_sizes_and_bytes(tmp_path: Path) -> None:
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    config.write_text("{}")
    weights.write_bytes(bytes(3 << 20))
    seen = {digest_of(tmp_path)}
    changes: list[Callable[[], object]] = [
        lambda: config.write_text("{ }"),
        lambda: weights.write_bytes(bytes((3 << 20) - 1) + b"!"),
        lambda: weights.rename(tmp_path / "other.safetensors"),
    ]
    for change in changes:
        change()
        seen.add(digest_of(tmp_path))
    assert len(seen) == 1 + len(changes)
    (tmp_path / "notes.txt").write_text("no part of the model")
    assert digest_of(tmp_path) in seen


@pytest.mark.parametrize("kind", ["folder", "network"])
def test_messages_arrive_and_those_of_strangers_do_not(kind: str, tmp_path: Path) -> None:
    network = in_folder(tmp_path) if kind == "folder" else over_network("127.0.0.1")
    context = zmq.Context()
    inbox, friend, stranger, other = (context.socket(each) for each in (zmq.PULL, zmq.PUSH, zmq.PUSH, zmq.PUSH))
    for each in (inbox, friend, stranger, other):
        each.setsockopt(zmq.LINGER, 0)
    try:
        address = network.listen(inbox, "in")
        if kind == "network":
            Network(host="127.0.0.1").connect(stranger, address)  # without keys
            over_network("127.0.0.1").connect(other, address)  # with others
            for each in (stranger, other):
                with contextlib.suppress(zmq.Again):  # once refused, it may have nobody to send to
                    each.send(b"let me in", zmq.NOBLOCK)
            assert not inbox.poll(300)
        network.connect(friend, address)
        friend.send(b"hello")
        assert inbox.poll(10_000)
        assert inbox.recv() == b"hello"
    finally:
        context.destroy(linger=0)
