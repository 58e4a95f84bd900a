"""Closes connections whose clients take too long to send a request. uvicorn waits for them for ever.

Only time spent waiting for the client counts: while a request is being answered, its body has a limit of its own
(`body.py`), and between requests uvicorn's limit for idle connections holds.
"""

import asyncio
from typing import Any

from facet.server.errors import HttpError
from facet.server.request_protocol import RequestProtocol


class RequestDeadlineProtocol(RequestProtocol):
    """A connection. If only part of a request's headers arrived in time, the client is told so with status 408."""

    def __init__(self, *arguments: Any, timeout: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        self._has_part_of_headers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing() or self._is_answering():
            self._stop_timer()
        elif self._timer is None:  # and otherwise a client could go on for ever with a byte now and then
            self._start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_part_of_headers = True
        self._stop_timer()  # what came before, if anything, does not count

    def on_headers_complete(self) -> None:
        self._has_part_of_headers = False
        super().on_headers_complete()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._timeout, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self._has_part_of_headers:
            message = f"The headers of the request did not arrive within {self._timeout:g} seconds."
            self._refuse(HttpError(408, message))
        else:
            self.transport.close()
