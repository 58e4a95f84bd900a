"""A connection of uvicorn's that can refuse a request before the app sees it, in the form of its API."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from facet.server.app import dialect_of
from facet.server.errors import HttpError
from facet.server.request_parser import RequestParser

# To read a refusal. A connection that is closed while its client still sends is reset, and the refusal lost.
_SECONDS_TO_READ = 2.0


class RequestProtocol(HttpToolsProtocol):
    """A connection. What `RequestParser` refuses is refused behind the answers to earlier requests."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = RequestParser(self)  # type: ignore[assignment]  # it has the methods that uvicorn calls
        self._refusal: bytes | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.parser.close()  # type: ignore[attr-defined]  # it is ours
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        try:
            super().data_received(data)
        except HttpError as error:
            self._refuse(error)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._refusal is not None and not self._is_answering() and not self.transport.is_closing():
            self._send_refusal(self._refusal)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: HttpError) -> None:
        """Refuses the request once earlier ones are answered. What still comes is thrown away."""
        if self._refusal is not None or self.transport.is_closing():
            return
        response = dialect_of(self.url.decode("latin-1")).error_response(error, {"Connection": "close"})
        headers = [*self.server_state.default_headers, *response.raw_headers]
        lines = [b"%b: %b\r\n" % header for header in headers]
        self._refusal = b"".join((STATUS_LINE[error.status], *lines, b"\r\n", response.body))
        if not self._is_answering():
            self._send_refusal(self._refusal)

    def _send_refusal(self, refusal: bytes) -> None:
        self.transport.write(refusal)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_SECONDS_TO_READ, self.transport.close)
