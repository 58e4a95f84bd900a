"""Polls the engine's state: asks now and then, and awaits the message on the event loop.

The engine's message arrives with its others; the bridge passes it on.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from facet.errors import EngineError

Message = TypeVar("Message")


class Poll(Generic[Message]):
    """One kind of message that the engine sends when asked."""

    def __init__(self, send: Callable[[], None]) -> None:
        """`send` asks the engine and does not wait."""
        self.last: Message | None = None
        self._send = send
        self._last_time = 0.0
        self._waiters: list[asyncio.Future[Message]] = []

    async def ask(self, *, timeout: float, max_age: float = 0.0) -> Message | None:
        """The engine's state now, or the last one known if no message comes in time.

        With a `max_age` in seconds a message no older than that will do, as will one that is on its way: the engine is
        asked once, however many callers there are.
        """
        if self.last is not None and time.monotonic() - self._last_time < max_age:
            return self.last
        is_asked = max_age > 0 and bool(self._waiters)
        waiter: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            if not is_asked:
                self._send()
            return await asyncio.wait_for(waiter, timeout)
        except (EngineError, TimeoutError):
            return self.last
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def deliver(self, message: Message) -> None:
        self.last, self._last_time = message, time.monotonic()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(message)

    def fail(self, error: EngineError) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
