"""Speaks HTTP/1.1 to one replica: keeps connections open and hands on bodies as they arrive.

Data pass from the event loop to the reader in two calls, since a proxy does little else. A reader that is slow stops
the replica's stream and no other.
"""

import asyncio
from dataclasses import dataclass, field

from facet.http.connection import Connection
from facet.http.response import BadResponseError, ResponseReader

SECRET_HEADER = b"x-facet-replica-secret"
_MOST_BUFFERED = 1 << 18


class ReplicaLostError(Exception):
    """A replica that broke off when it had a request."""


class ReplicaGoneError(ReplicaLostError):
    """A replica that cannot be reached, so that it has not seen the request."""


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """A Unix socket, or a host and a port, which others may reach: requests there carry a secret."""

    socket: str = ""
    host: str = ""
    port: int = 0
    secret: str = field(default="", repr=False)


class ReplicaResponse:
    """A response whose head has come. It must be read to its end or closed."""

    def __init__(self, client: "ReplicaClient", connection: "_Connection") -> None:
        self._client = client
        self._connection = connection
        self.status = connection.reader.status
        self.headers = connection.reader.headers
        self._is_over = False

    @property
    def is_stream(self) -> bool:
        return b"content-length" not in self.headers

    async def read(self) -> bytes:
        """What has come since the last time; nothing at the end."""
        data = await self._connection.read()
        if not data and not self._is_over:
            self._is_over = True
            self._client.put_back(self._connection)
        return data

    async def read_all(self) -> bytes:
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """Ends the response, unless it is over; the replica notices."""
        if not self._is_over:
            self._connection.close()


class ReplicaClient:
    """One replica, any number of connections to it."""

    def __init__(self, address: ReplicaAddress) -> None:
        self._address = address
        self._idle: list[_Connection] = []

    async def send(self, request: bytes) -> ReplicaResponse:
        """Sends a whole request and waits for the head of the response.

        A replica closes connections that were idle for long, perhaps at the moment a request is on its way there.
        Nothing of an answer has come then, so the request is sent once more, over a new connection. If there is none,
        the replica has died instead, and perhaps of this request.
        """
        if self._address.secret:
            line, _, rest = request.partition(b"\r\n")
            request = b"%b\r\n%b: %b\r\n%b" % (line, SECRET_HEADER, self._address.secret.encode(), rest)
        lost: ReplicaLostError | None = None
        if (connection := self._take_idle()) is not None:
            try:
                return await self._exchange(connection, request)
            except ReplicaLostError as error:
                lost = error
        try:
            connection = await self._connect()
        except ReplicaGoneError as gone:
            raise lost or gone from None
        return await self._exchange(connection, request)

    @staticmethod
    def message(path: str, *, method: str = "GET", key: str | None = None, body: bytes = b"") -> bytes:
        """A request of our own, its body being JSON."""
        lines = [f"{method} {path} HTTP/1.1", "Host: replica", f"Content-Length: {len(body)}"]
        lines += ["Content-Type: application/json"] if body else []
        lines += [f"Authorization: Bearer {key}"] if key else []
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode() + body

    async def ask(self, path: str, *, method: str = "GET", key: str | None = None) -> tuple[int, bytes]:
        """A request of our own: the status and the body of the answer."""
        response = await self.send(self.message(path, method=method, key=key))
        try:
            return response.status, await response.read_all()
        finally:
            response.close()

    def put_back(self, connection: "_Connection") -> None:
        if connection.is_reusable:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Closes what is idle; responses that are being read go on."""
        while self._idle:
            self._idle.pop().close()

    def _take_idle(self) -> "_Connection | None":
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        return None

    async def _exchange(self, connection: "_Connection", request: bytes) -> ReplicaResponse:
        try:
            await connection.send(request)
        except BaseException:
            connection.close()
            raise
        return ReplicaResponse(self, connection)

    async def _connect(self) -> "_Connection":
        loop, address = asyncio.get_running_loop(), self._address
        try:
            if address.socket:
                _, connection = await loop.create_unix_connection(_Connection, address.socket)
            else:
                _, connection = await loop.create_connection(_Connection, address.host, address.port)
        except OSError as error:
            raise ReplicaGoneError(f"cannot connect: {error.strerror or error}") from None
        return connection


class _Connection(Connection):
    """Keeps what has come of a body until it is read."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._num_buffered = 0
        self._is_paused = False
        self._lost: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def send(self, request: bytes) -> None:
        self.reader = ResponseReader()
        self.transport.write(request)
        while not self.reader.status:
            await self._wait()

    async def read(self) -> bytes:
        while not self._parts:
            if self.reader.is_complete:
                return b""
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._num_buffered = 0
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        return data

    def data_received(self, data: bytes) -> None:
        try:
            body = self.reader.feed(data)
        except BadResponseError as error:
            self._lost = str(error)
            self.close()
            return
        if body:
            self._parts.append(body)
            self._num_buffered += len(body)
            if self._num_buffered > _MOST_BUFFERED and not self._is_paused:
                self._is_paused = True
                self.transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if error is not None or not self.reader.end():
            self._lost = self._lost or (str(error) if error else "the connection was closed")
        self._wake()

    async def _wait(self) -> None:
        if self._lost is not None:
            raise ReplicaLostError(self._lost)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
