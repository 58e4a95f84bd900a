"""Stops a server without losing answers: running requests finish, and those that cannot in time are told why."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from facet.server.certificates import Keeper

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 0.1
# After the app is closed, which fails what still runs: enough to send these errors.
_SECONDS_TO_TELL = 2.0


class DrainingServer(uvicorn.Server):
    """On SIGTERM or SIGINT: takes no new connection, lets running requests finish, then returns.

    When their time is over, or at a second signal, the app is closed while they still wait, so that it can answer each
    with an error. uvicorn would cut them off first. Its own handling of signals would also raise them again at the end,
    so that a clean stop looks like a death by signal. The server stops by itself once the engine is dead: whoever
    watches it can start another.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        is_dead: Callable[[], bool] = lambda: False,
        on_listening: Callable[[], None] = lambda: None,
        keep_fresh: Keeper | None = None,
    ) -> None:
        """`keep_fresh` runs beside the server, where that speaks TLS."""
        super().__init__(config)
        self._is_dead = is_dead
        self._on_listening = on_listening
        self._keep_fresh = keep_fresh
        self._keeping: asyncio.Task[None] | None = None

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._is_dead()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:  # and not before, because clients that wait for this connect at once
            self._on_listening()
            if self._keep_fresh is not None and self.config.ssl is not None:
                self._keeping = asyncio.create_task(self._keep_fresh(self.config.ssl))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        draining = asyncio.create_task(super().shutdown(sockets=sockets))
        if await self._finishes_in_time(draining):
            return await draining
        draining.cancel()
        running = set(self.server_state.tasks)
        if running:
            logger.info("Unfinished requests, which get an error: %d.", len(running))
        await self.lifespan.shutdown()
        if running:
            _, late = await asyncio.wait(running, timeout=_SECONDS_TO_TELL)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _finishes_in_time(self, draining: asyncio.Task[None]) -> bool:
        loop = asyncio.get_running_loop()
        patience = self.config.timeout_graceful_shutdown
        deadline = float("inf") if patience is None else loop.time() + patience
        while not draining.done() and not self.force_exit and loop.time() < deadline:
            await asyncio.wait([draining], timeout=min(_SECONDS_BETWEEN_LOOKS, deadline - loop.time()))
        return draining.done() and not self.force_exit

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        is_main = threading.current_thread() is threading.main_thread()  # only there can signals be handled
        numbers = (signal.SIGTERM, signal.SIGINT) if is_main else ()
        errors = logging.getLogger("uvicorn.error")
        errors.addFilter(_is_no_cancellation)
        for number in numbers:
            loop.add_signal_handler(number, self._stop, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            errors.removeFilter(_is_no_cancellation)

    def _stop(self, number: int) -> None:
        if self.should_exit:
            if not self.force_exit:
                logger.info("%s again: stopping at once.", signal.Signals(number).name)
            self.force_exit = True
            return
        logger.info("%s: finishing running requests, then stopping.", signal.Signals(number).name)
        self.handle_exit(number, None)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Requests that a stop cuts short are no failures, for which uvicorn would print a traceback each."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
