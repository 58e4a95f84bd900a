"""A lean HTTP/1.1 client that keeps connections open and passes bodies on as they arrive.

General clients spend more on a streamed token than many servers do, and a benchmark then measures its client. Here data
go from the event loop to their reader through two calls. Knows nothing of what a body means.
"""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from facet.http.connection import Connection
from facet.http.response import BadResponseError, ResponseReader
from facet.http.server_url import ServerUrl

# A part of a body and when it arrived.
OnBody = Callable[[bytes, float], None]
_MOST_ERROR_BYTES = 1 << 16


class ExchangeError(Exception):
    """A request without a complete answer; failures are counted by `kind`."""

    kind = "failed"


class CannotConnectError(ExchangeError):
    kind = "could not connect"


class ConnectionLostError(ExchangeError):
    kind = "connection lost"


class EndedEarlyError(ExchangeError):
    kind = "stream ended early"


class BadAnswerError(ExchangeError):
    kind = "answer not understood"


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes  # empty where it went to a reader


class HttpClient:
    """One server, any number of connections to it."""

    def __init__(self, url: ServerUrl, headers: dict[str, str], *, is_insecure: bool = False) -> None:
        self.url = url
        lines = {"Host": url.authority, "Content-Type": "application/json", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._tls = _tls_context(is_insecure) if url.is_tls else None
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()  # those, and the ones in use
        self._address: str | None = None  # the one that answered; names are looked up once

    async def get(self, path: str) -> Response:
        return await self._send(f"GET {path} HTTP/1.1\r\n{self._headers}\r\n".encode("latin-1"), None)

    async def post(self, path: str, body: bytes, on_body: OnBody) -> Response:
        """Passes the body on if the status is 200, and returns it otherwise."""
        head = f"POST {path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        return await self._send(head.encode("latin-1") + body, on_body)

    def close(self) -> None:
        """Ends whatever is under way. An event loop with connections left open may not close."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()

    async def _send(self, request: bytes, on_body: OnBody | None) -> Response:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                self._open.discard(connection)
                continue
            try:
                return await self._exchange(connection, request, on_body)
            except ConnectionLostError:
                # A server may close an idle connection at the very moment it is used again. That is no failure of
                # the request, as long as nothing of an answer came.
                if connection.has_answered:
                    raise
        return await self._exchange(await self._connect(), request, on_body)

    async def _exchange(self, connection: "_Connection", request: bytes, on_body: OnBody | None) -> Response:
        try:
            response = await connection.exchange(request, on_body)
        except BaseException:
            self._drop(connection)
            raise
        if connection.is_reusable:
            self._idle.append(connection)
        else:
            self._drop(connection)
        return response

    def _drop(self, connection: "_Connection") -> None:
        connection.close()
        self._open.discard(connection)

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        tls_name = self.url.host if self._tls is not None else None
        reason: OSError | None = None
        try:
            for address in [self._address] if self._address else await self._look_up():
                try:
                    _, connection = await loop.create_connection(
                        _Connection, address, self.url.port, ssl=self._tls, server_hostname=tls_name
                    )
                except OSError as error:  # the errors of TLS are among them
                    reason = error
                else:
                    self._address = address
                    self._open.add(connection)
                    return connection
        except OSError as error:  # no such name
            reason = error
        raise CannotConnectError(f"{self.url.authority}: {_words_of(reason)}") from reason

    async def _look_up(self) -> list[str]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.url.host, self.url.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class _Connection(Connection):
    """Passes a body on as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.has_answered = False  # whether any byte of the present exchange's answer came
        self._on_body: OnBody | None = None
        self._body: list[bytes] = []
        self._num_body_bytes = 0
        self._unasked = b""  # what came when no answer was due
        self._done: asyncio.Future[None] | None = None

    async def exchange(self, request: bytes, on_body: OnBody | None) -> Response:
        self.reader, self._on_body, self._body, self._num_body_bytes = ResponseReader(), on_body, [], 0
        self.has_answered = False
        if self._unasked:
            raise BadAnswerError(f"the server sent data unasked, {self._unasked[:40]!r}: is it an HTTP server?")
        if not self.is_open:
            raise ConnectionLostError("the server closed the connection")
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            await self._done
        finally:
            self._done = None
        return Response(self.reader.status, b"".join(self._body))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        done = self._done
        if done is None or done.done():
            self._unasked = data
            self.close()
            return
        self.has_answered = True
        reader = self.reader
        try:
            body = reader.feed(data)
            if body:
                if reader.status == 200 and self._on_body is not None:
                    self._on_body(body, now)
                elif self._num_body_bytes < _MOST_ERROR_BYTES or self._on_body is None:
                    self._body.append(body)
                    self._num_body_bytes += len(body)
        except (BadResponseError, ExchangeError) as error:
            done.set_exception(error if isinstance(error, ExchangeError) else BadAnswerError(str(error)))
            return
        if reader.is_complete:
            done.set_result(None)

    def eof_received(self) -> bool:
        return False  # close on our side too

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._done is None or self._done.done():
            return
        if error is None and self.reader.end():
            self._done.set_result(None)
        elif self.reader.status and error is None:
            self._done.set_exception(EndedEarlyError("the server closed the connection in the middle of its answer"))
        else:
            reason = "the server closed the connection" if error is None else _words_of(error)
            self._done.set_exception(ConnectionLostError(reason))


def _tls_context(is_insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _words_of(error: BaseException | None) -> str:
    if error is None:
        return "the name has no address"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror) and error.errno:
        return os.strerror(error.errno)  # shorter than what asyncio makes of it, and the same with every loop
    return str(error) or type(error).__name__
