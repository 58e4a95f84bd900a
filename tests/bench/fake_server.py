"""A server of a few lines that does to its clients what it is told to, on a real port, in a thread of its own."""

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Asked:
    """One request, as it came."""

    number: int  # of those that were no GET, from 0
    connection: int  # which connection it came over
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Call:
    """A request and the ways to answer it."""

    asked: Asked
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def json(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        await self.send(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    async def head(self) -> None:
        await self.send(STREAM_HEAD)

    async def event(self, value: Any) -> None:
        data = value if isinstance(value, bytes) else b"data: " + json.dumps(value).encode() + b"\n\n"
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self, *, done: bool = True) -> None:
        if done:
            await self.event(b"data: [DONE]\n\n")
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        self.writer.transport.abort()

    async def completion(self, *, usage: bool = True, pause: float = 0.0) -> None:
        """As many tokens as were asked for, one chunk each."""
        await self.head()
        num_tokens = self.asked.body["max_tokens"]
        for index in range(num_tokens):
            await asyncio.sleep(pause)
            reason = "length" if index == num_tokens - 1 else None
            await self.event({"choices": [{"index": 0, "text": " word", "finish_reason": reason}]})
        if usage:
            counts = {"prompt_tokens": len(self.asked.body["prompt"]), "completion_tokens": num_tokens}
            await self.event({"choices": [], "usage": counts})
        await self.end()


Answer = Callable[[Call], Awaitable[None]]


@dataclass
class FakeServer:
    answer: Answer
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0
    num_at_once: int = 0
    most_at_once: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = self.num_connections
        self.num_connections += 1
        try:
            await self._serve(connection, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.transport.abort()

    async def _serve(self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path, _ = first.split()
            asked = Asked(len(self.asked), connection, method, path, headers, json.loads(body) if body else None)
            call = Call(asked, writer)
            if method == "GET":
                await call.json(200, MODELS)
                continue
            self.asked.append(asked)
            self.num_at_once += 1
            self.most_at_once = max(self.most_at_once, self.num_at_once)
            try:
                await self.answer(call)
            finally:
                self.num_at_once -= 1


@contextlib.contextmanager
def fake_server(answer: Answer, *, tls: ssl.SSLContext | None = None) -> Iterator[FakeServer]:
    fake = FakeServer(answer)
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []
    tasks: list[asyncio.Task[None]] = []  # the loop itself holds them weakly

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        tasks.append(loop.create_task(fake.serve(reader, writer)))

    async def run() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
        fake.port = server.sockets[0].getsockname()[1]
        started.set()
        await stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for writer in writers:  # a task cancelled before its first line, or mid-answer, has closed nothing
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert started.wait(10), "the fake server did not start"
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive(), "the fake server did not stop"
        loop.close()
