"""Streams answers as server-sent events, and notices clients that disconnect."""

import asyncio
import logging
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from facet.errors import EngineError
from facet.event_stream import as_event
from facet.server.engine_bridge import EngineCall
from facet.server.errors import error_body
from facet.server.metrics import CallTimer

logger = logging.getLogger(__name__)


class ClientGoneError(EngineError):
    """The client closed its connection, so there is nobody to answer."""


class WatchedCall:
    """An engine call that ends when its client disconnects. It must be closed in any case."""

    def __init__(self, call: EngineCall, receive: Receive, timer: CallTimer) -> None:
        self.call = call
        self._timer = timer
        self._watch = asyncio.create_task(self._wait_for_disconnect(receive))

    def close(self) -> None:
        self._watch.cancel()
        self.call.close()

    async def _wait_for_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._timer.on_gone(len(self.call.pending))
        self.call.close()  # the engine stops working on it now
        self.call.fail(ClientGoneError("The client closed its connection."))


class EventStream(Response):
    """Sends events as they are made. A failure on the way becomes a last event.

    Flow control is the connection's: a client that reads slowly holds back its own stream and no other, and what waits
    meanwhile is token ids.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], watched: WatchedCall) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"  # proxies that collect answers would undo the streaming
        self._events = events
        self._watched = watched

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for data in self._events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            except (ClientGoneError, OSError):
                return
            except Exception as error:
                data = as_event(msgspec.json.encode(error_body(error)))
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._watched.close()
