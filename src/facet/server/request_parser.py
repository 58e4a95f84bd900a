"""Reads requests with httptools: within a limit for their heads, and deaf to offers of another protocol.

httptools stops behind the head of a request that offers an upgrade, as Java's HTTP client does (`Upgrade: h2c`): a
server that accepts would go on in the other protocol. One that does not has to answer as if nothing had been offered
(RFC 9110, 7.8). So a new parser reads the head again, without the offer, and then the body.
"""

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from facet.server.errors import HttpError

MAX_HEAD_BYTES = 64 << 10
# Where a head begins behind a body is not known, so the bytes around it do not count: fewer than these.
_PIECE_BYTES = 4 << 10


class RequestParser:
    """Takes the place of httptools' parser in uvicorn's protocol, and raises `HttpError` for what is to be refused.

    Trailers are read and left out: uvicorn would take them for headers.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self.on_url = protocol.on_url
        self._parser = self._make_parser()
        self._num_bytes = 0  # since the request began, or since its head or the last of its body was read
        self._is_in_request = False
        self._is_in_head = False

    def close(self) -> None:
        """Lets go of the parser, which otherwise only the garbage collector would: it refers to this object."""
        del self._parser

    def feed_data(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            size = min(_PIECE_BYTES, MAX_HEAD_BYTES - self._num_bytes)
            piece, rest = rest[:size], rest[size:]
            self._num_bytes += len(piece)
            self._feed(piece)
            if not self._is_in_request:
                self._num_bytes = 0
            elif self._num_bytes == MAX_HEAD_BYTES:
                if not self._is_in_head:
                    raise HttpParserError("the trailers, or what is said of a chunk, are too long")
                raise HttpError(
                    431,
                    f"The headers of the request have more than {MAX_HEAD_BYTES} bytes. Send fewer, or shorter ones.",
                )

    def get_method(self) -> bytes:
        return self._parser.get_method()

    def get_http_version(self) -> str:
        return self._parser.get_http_version()

    def should_keep_alive(self) -> bool:
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        return False

    def on_message_begin(self) -> None:
        self._is_in_request = self._is_in_head = True
        self._protocol.on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._parser.should_upgrade():
            self._num_bytes, self._is_in_head = 0, False
            self._protocol.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_bytes = 0
        self._protocol.on_body(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():
            self._num_bytes, self._is_in_request = 0, False
            self._protocol.on_message_complete()

    def _make_parser(self) -> HttpRequestParser:
        parser = HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
        return parser

    def _feed(self, data: memoryview) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except HttpParserUpgrade as offer:
                if self._parser.get_method() == b"CONNECT":  # what follows is meant for another server
                    raise HttpError(400, "CONNECT is for proxies, and this server is none.") from None
                head, data = self._head_without_offer(), data[offer.args[0] :]
                self._parser = self._make_parser()
                self._parser.feed_data(head)

    def _head_without_offer(self) -> bytes:
        """The head made of what the parser understood, not of what was sent: there is nothing in it that could be read
        otherwise."""
        version = self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._protocol.url, version)]
        lines += [b"%b: %b" % header for header in self._protocol.headers if header[0] != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))
