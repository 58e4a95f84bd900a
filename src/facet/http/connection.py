"""One connection to a server, as our clients have in common: its socket, and whether it can carry another request.

What becomes of a body as it arrives is each client's own.
"""

import asyncio
from typing import cast

from facet.http.response import ResponseReader


class Connection(asyncio.Protocol):
    """Carries one exchange at a time, with a reader of its own."""

    def __init__(self) -> None:
        self.reader = ResponseReader()
        self.is_open = False
        self._transport: asyncio.Transport | None = None

    @property
    def is_reusable(self) -> bool:
        return self.is_open and self.reader.is_complete and self.reader.keeps_alive

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None, "a connection is used after it was made"
        return self._transport

    def close(self) -> None:
        """Closes the connection at once: what has not been sent is dropped."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is no subclass
        self.is_open = True
