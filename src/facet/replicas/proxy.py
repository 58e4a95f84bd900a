"""Passes requests on to replicas and streams their answers back.

A request is read whole before a replica is chosen by it. As long as nothing of an answer has been sent, another replica
is tried where one cannot be reached, breaks off or is overloaded. Replicas begin to answer with the first token, so a
request that has none yet is not lost with its replica. A stream that breaks off later ends with an error event. A
request that several replicas in turn broke off over is not tried again: it may be what they break over.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from facet.config import ServerConfig
from facet.replicas.connection import ReplicaGoneError, ReplicaLostError, ReplicaResponse
from facet.replicas.errand import RESPONSES_PATH, Errand, make_errand
from facet.replicas.replica_set import ReplicaSet
from facet.router import Route
from facet.server.app import dialect_of
from facet.server.body import read_body
from facet.server.dialect import Dialect
from facet.server.engine_bridge import StoppingError
from facet.server.errors import Fault, HttpError
from facet.server.exchange import CACHED_TOKENS_HEADER

# How long a request waits for a replica to start where none is running.
_PATIENCE_SECONDS = 30.0
# Replicas that may break off over one request.
_MOST_LOST = 3
_RESPONSE_ID = re.compile(rb'"id":"(resp_\w+)"')
# Headers that are about one connection only, or that the proxy adds itself.
_NOT_RETURNED = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"date", b"server", b"vary",
                           b"access-control-allow-origin"})  # fmt: skip


@dataclass(slots=True)
class ProxyCounts:
    """What the proxy has counted since its start."""

    num_retries: int = 0
    num_broken: int = 0  # streams that ended with an error because their replica broke off
    num_requests: dict[str, int] = field(default_factory=dict)  # that each replica answered


@dataclass(frozen=True, slots=True)
class _Answer:
    route: Route
    response: ReplicaResponse
    first: bytes  # the first part of a stream; of anything else the whole body


class Proxy:
    """An ASGI app."""

    def __init__(self, replicas: ReplicaSet, config: ServerConfig) -> None:
        self.counts = ProxyCounts()
        self._replicas = replicas
        self._config = config
        self._watches: set[_Watch] = set()

    def stop(self) -> None:
        """Answers what is still running with an error."""
        for watch in self._watches:
            watch.cut_off()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        dialect = dialect_of(path)
        config, request = self._config, Request(scope, receive)
        try:
            body = await read_body(request, max_bytes=config.max_request_bytes, timeout=config.request_timeout)
        except HttpError as error:
            return await dialect.error_response(error)(scope, receive, send)
        watch = _Watch(receive)
        self._watches.add(watch)
        try:
            with watch.telling():
                answer = await self._ask(make_errand(request, path, body))
            await self._give(answer, dialect, send, watch)
        except (HttpError, StoppingError) as error:
            watch.stop()
            await dialect.error_response(error)(scope, receive, send)
        except asyncio.CancelledError:
            if not watch.is_gone:
                raise
        finally:
            self._watches.discard(watch)
            watch.stop()

    async def _ask(self, errand: Errand) -> _Answer:
        """The answer, or the beginning of one, of the first replica that gives one."""
        router = self._replicas.router
        avoid: set[str] = set()
        num_lost = 0
        while True:
            name = router.choose(errand.key, avoid=avoid)
            if name is None and not router.ready and await self._replicas.wait_until_ready(_PATIENCE_SECONDS):
                avoid.clear()
                continue
            if name is None:
                raise HttpError(503, "No replica can take this request now. Try again later.")
            self.counts.num_retries += bool(avoid)
            route = router.begin(errand.key, name)
            answer = None
            try:
                answer = await self._try(errand, route)
                if answer is not None:
                    return answer
            except ReplicaLostError as error:
                num_lost += not isinstance(error, ReplicaGoneError)
            finally:
                if answer is None:  # it was not taken, or the client has left
                    router.undo(route)
                    self._replicas.note_end(name)
            avoid.add(name)
            if num_lost == _MOST_LOST:
                raise HttpError(500, f"{num_lost} replicas ended while they had this request. It is not tried again.")

    async def _try(self, errand: Errand, route: Route) -> _Answer | None:
        """The answer of a replica. None: it has too much to do."""
        response = await self._replicas.clients[route.replica].send(errand.message)
        try:
            is_refused = response.status == 503
            first = await (response.read() if response.is_stream and not is_refused else response.read_all())
        except BaseException:
            response.close()
            raise
        if is_refused:
            return None
        if errand.path == RESPONSES_PATH and (found := _RESPONSE_ID.search(first)):
            self._replicas.router.pin(route, found[1].decode(), owner=errand.owner)
        self.counts.num_requests[route.replica] = self.counts.num_requests.get(route.replica, 0) + 1
        return _Answer(route, response, first)

    async def _give(self, answer: _Answer, dialect: Dialect, send: Send, watch: "_Watch") -> None:
        response, part = answer.response, answer.first
        headers = [(name, value) for name, value in response.headers.items() if name not in _NOT_RETURNED]
        try:
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            with watch.telling():
                while part and response.is_stream:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                    part = await response.read()
        except ReplicaLostError:
            self.counts.num_broken += 1
            part = dialect.event(dialect.error_body(Fault(500, "The replica that was answering has ended. Ask again.")))
        except StoppingError as error:
            part = dialect.event(dialect.error_body(dialect.fault(error)))
        finally:
            response.close()
            self._replicas.router.end(answer.route, *_cached_tokens(response))
            self._replicas.note_end(answer.route.replica)
        watch.stop()  # what it would hear next is the end of this response
        await send({"type": "http.response.body", "body": part, "more_body": False})


class _Watch:
    """Cancels the task that answers when its client has left or the server stops, and with it the request in the
    replica."""

    def __init__(self, receive: Receive) -> None:
        self.is_gone = False
        self._is_cut_off = False
        self._answering = asyncio.current_task()
        self._watching = asyncio.create_task(self._wait(receive))

    def stop(self) -> None:
        self._watching.cancel()

    def cut_off(self) -> None:
        self._is_cut_off = True
        self._cancel()

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Inside, being cut off is an error like others, of which the client is told."""
        try:
            yield
        except asyncio.CancelledError:
            if self._is_cut_off and not self.is_gone:
                raise StoppingError from None
            raise

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        self._cancel()

    def _cancel(self) -> None:
        assert self._answering is not None, "an app runs in a task"
        self._answering.cancel()


def _cached_tokens(response: ReplicaResponse) -> tuple[int, int] | tuple[()]:
    """How many tokens of the prompt were cached, and of how many."""
    cached, _, prompt = response.headers.get(CACHED_TOKENS_HEADER.encode(), b"").partition(b"/")
    return (int(cached), int(prompt)) if cached.isdigit() and prompt.isdigit() else ()
