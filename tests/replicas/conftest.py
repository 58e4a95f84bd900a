"""Replicas for the proxy: the real app with a scripted engine, and sockets that misbehave."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from facet.config import ServerConfig
from facet.replicas.connection import ReplicaAddress
from facet.replicas.proxy_app import make_proxy_app
from facet.replicas.replica_set import ReplicaSet
from facet.replicas.shared_adapters import SharedAdapters
from tests.ports import closed_port
from tests.server.conftest import scripted, tokenizer  # noqa: F401  (fixtures)
from tests.server.running import RunningServer, running


@contextlib.contextmanager
def proxied(
    *ports: int, replicas: ReplicaSet | None = None, adapters: SharedAdapters | None = None, **settings: Any
) -> Iterator[tuple[RunningServer, ReplicaSet]]:
    """A proxy in front of replicas on these ports, which are named by their order."""
    replicas = replicas or ReplicaSet()
    for number, port in enumerate(ports):
        replicas.add(str(number), ReplicaAddress(host="127.0.0.1", port=port))
    app = make_proxy_app(ServerConfig(model="tiny", **settings), replicas, adapters=adapters)
    with running(app) as server:
        yield server, replicas


@pytest.fixture
def misbehaving() -> Iterator[Callable[[bytes | None], int]]:
    """A port where every request gets these bytes and the end of the connection; None: nobody is there."""
    with contextlib.ExitStack() as held:

        def listen(answer: bytes | None) -> int:
            if answer is None:
                return held.enter_context(closed_port())
            listener = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            threading.Thread(target=_answer_all, args=(listener, answer), daemon=True).start()
            return int(listener.getsockname()[1])

        yield listen


def _answer_all(listener: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)
