"""Sends an answer part by part as it is made, and notices clients that disconnect."""

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from facet.errors import EngineError
from facet.server.call_timer import CallTimer
from facet.server.engine_bridge import EngineCall


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
    """Sends events as they are made.

    Flow control is the connection's: a client that reads slowly holds back its own stream and no other, and what waits
    meanwhile is token ids.
    """

    def __init__(self, events: AsyncIterator[bytes], watched: WatchedCall, media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"  # proxies that collect answers would undo the streaming
        self._events = events
        self._watched = watched

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientGoneError, OSError):
            return
        finally:
            self._watched.close()
