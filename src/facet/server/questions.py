"""A question that the server sends to the engine now and then, and whose answer it awaits on the event loop.

Answers arrive with the engine's other messages; the bridge passes them on.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from facet.errors import EngineError

Reply = TypeVar("Reply")


class Question(Generic[Reply]):
    def __init__(self, send: Callable[[], None]) -> None:
        """`send` puts the question to the engine and does not wait."""
        self.last: Reply | None = None
        self._send = send
        self._answered_at = 0.0
        self._waiters: list[asyncio.Future[Reply]] = []

    async def ask(self, *, timeout: float, max_age: float = 0.0) -> Reply | None:
        """The engine's current answer, or its last one if it does not answer in time.

        With a `max_age` in seconds an answer no older than that will do, as will one that is on its way: however many
        ask, the engine hears little of it.
        """
        if self.last is not None and time.monotonic() - self._answered_at < max_age:
            return self.last
        is_asked = max_age > 0 and bool(self._waiters)
        waiter: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
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

    def answer(self, reply: Reply) -> None:
        self.last, self._answered_at = reply, time.monotonic()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(reply)

    def fail(self, error: EngineError) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
