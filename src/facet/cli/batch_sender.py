"""Sends the requests of a batch to a server, as many at once as keep it busy, and waits where it is asked to."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from facet.cli.batch_lines import BatchRequest, answer_line, count_tokens, message_of, new_id
from facet.errors import EngineError
from facet.replicas.connection import ReplicaAddress, ReplicaClient, ReplicaLostError

# The bytes of requests on their way, but for the last one of them.
_MOST_BYTES = 256 << 20
_OK, _BUSY = 200, 503
_HEALTH = "/health"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A request, and its place in the batch."""

    index: int
    request: BatchRequest


@dataclass(slots=True)
class Tally:
    num_answered: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0


class BatchSender:
    """`on_answer` gets the place of each request and the line for the output."""

    def __init__(self, socket: Path, on_answer: Callable[[int, bytes], None], tally: Tally) -> None:
        self._client = ReplicaClient(ReplicaAddress(socket=str(socket)))
        self._on_answer = on_answer
        self._tally = tally
        self._num_bytes = 0  # of the requests on their way
        self._room = asyncio.Condition()

    async def send_all(self, requests: Iterable[Numbered], max_at_once: int) -> None:
        remaining = iter(requests)
        try:
            async with asyncio.TaskGroup() as senders:
                for _ in range(max_at_once):
                    senders.create_task(self._send_some(remaining))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._client.close()

    async def _send_some(self, remaining: Iterator[Numbered]) -> None:
        """Sends requests one after the other, beside others who do the same."""
        while True:
            async with self._room:
                await self._room.wait_for(lambda: self._num_bytes < _MOST_BYTES)
                numbered = next(remaining, None)
                if numbered is None:
                    return
                num_bytes = len(numbered.request.body)
                self._num_bytes += num_bytes
            await self._send(numbered)
            async with self._room:
                self._num_bytes -= num_bytes
                self._room.notify()

    async def _send(self, numbered: Numbered) -> None:
        request, line_id = numbered.request, new_id()
        head = (
            f"POST {request.url} HTTP/1.1\r\nHost: facet\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: {line_id}\r\nContent-Length: {len(request.body)}\r\n\r\n"
        )
        while True:
            status, seconds, body = await self._exchange(head.encode() + request.body)
            if status != _BUSY:
                break
            await self._check_health()
            await asyncio.sleep(seconds)
        if status == _OK:
            num_prompt_tokens, num_generated_tokens = count_tokens(body)
            self._tally.num_answered += 1
            self._tally.num_prompt_tokens += num_prompt_tokens
            self._tally.num_generated_tokens += num_generated_tokens
        else:
            self._tally.num_failed += 1
        self._on_answer(numbered.index, answer_line(line_id, request.custom_id, status, body))

    async def _exchange(self, message: bytes) -> tuple[int, float, bytes]:
        """The status, for how many seconds to wait, and the body."""
        try:
            response = await self._client.send(message)
            try:
                body = await response.read_all()
            finally:
                response.close()
        except ReplicaLostError as error:
            raise EngineError(f"The server inside this command ended: {error}.") from None
        return response.status, float(response.headers.get(b"retry-after", b"1")), body

    async def _check_health(self) -> None:
        """A server whose engine is dead refuses like one that has too much to do, but for ever."""
        status, _, body = await self._exchange(f"GET {_HEALTH} HTTP/1.1\r\nHost: facet\r\n\r\n".encode())
        if status != _OK:
            raise EngineError(message_of(body))
