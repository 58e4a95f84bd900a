"""The real app on a real port, in a thread of the test process; its engine in a process of its own."""

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette

from facet.config import ServerConfig
from facet.server.certificates import without_tls
from facet.server.draining import DrainingServer
from facet.server.run import start_app, uvicorn_config
from tests.quick_starts import quick_starts

# Seconds: enough for a machine with ten times as much to do.
PATIENCE = 120
NO_FLAGS = ServerConfig(model="")
# Without it every client would read all certificates of the machine, which takes far longer than a request does.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass
class RunningServer:
    url: str
    server: uvicorn.Server
    port: int

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, verify=NO_CERTIFICATES, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        with self.client() as client:
            return client.get(path, **options)

    def chunks(self, path: str, body: dict[str, Any]) -> list[str]:
        """The data of every event of a stream."""
        with self.client() as client, client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            return [line.removeprefix("data: ") for line in response.iter_lines() if line]


@contextlib.contextmanager
def running(app: Starlette, config: ServerConfig = NO_FLAGS) -> Iterator[RunningServer]:
    # Without TLS: tests name files that do not exist.
    settings = uvicorn_config(replace(without_tls(config), uvicorn_log_level="error"), app)
    settings.port = 0
    server = DrainingServer(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server takes too long"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield RunningServer(f"http://127.0.0.1:{port}", server, port)
    finally:
        server.should_exit = True
        thread.join(timeout=PATIENCE)
        assert not thread.is_alive(), "the server did not stop"


@contextlib.contextmanager
def running_with_engine(config: ServerConfig) -> Iterator[RunningServer]:
    with quick_starts():
        _, _, app = start_app(config)
    with running(app, config) as server:
        yield server


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
