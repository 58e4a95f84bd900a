"""A client that sends bytes, whether they are HTTP or not."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.server.running import PATIENCE, RunningServer


@dataclass(frozen=True)
class Client:
    socket: socket.socket
    began: float  # before it was connected, so that no delay makes a wait look shorter than it was

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_until(self, end: bytes) -> bytes:
        received = b""
        while not received.endswith(end):
            part = self.socket.recv(1 << 16)
            assert part, f"the connection ended early, after {received!r}"
            received += part
        return received

    def read_all(self, drip: bytes = b"") -> bytes:
        """What comes until the server closes the connection. Meanwhile, `drip` is sent ten times a second."""
        received, deadline = b"", time.monotonic() + PATIENCE
        self.socket.settimeout(0.1 if drip else PATIENCE)
        while time.monotonic() < deadline:
            try:
                part = self.socket.recv(1 << 16)
                if not part:
                    return received
                received += part
            except TimeoutError:
                with contextlib.suppress(ConnectionError):  # it has just been closed; what came before can be read
                    self.socket.sendall(drip)
            except ConnectionError:  # a drip met a connection that had been closed
                return received
        raise AssertionError("the connection stayed open")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


@contextlib.contextmanager
def connected(server: RunningServer) -> Iterator[Client]:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        yield Client(connection, began)


def refusal(response: bytes, status: int) -> dict[str, object]:
    head, _, body = response.partition(b"\r\n\r\n")
    first, *headers = head.lower().split(b"\r\n")
    assert first.startswith(b"http/1.1 %d " % status), response
    assert b"connection: close" in headers
    assert b"content-type: application/json" in headers
    assert b"content-length: %d" % len(body) in headers
    error: dict[str, object] = json.loads(body)
    return error
