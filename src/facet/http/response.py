"""Reads an HTTP/1.1 response from parts of any size. Knows framing, not sockets and not what a body means.

Written for streams of many small chunks: what arrives is usually one or a few whole chunks, and each costs only a
handful of operations on bytes.
"""

_LONGEST_HEAD = 1 << 16
_BODILESS = {204, 304}


class BadResponseError(Exception):
    """The response is not valid HTTP/1.1."""


class ResponseReader:
    """Takes bytes as they arrive and returns those of the body."""

    __slots__ = (
        "_feed_body",
        "_is_in_trailer",
        "_num_left",
        "_rest",
        "headers",
        "is_complete",
        "keeps_alive",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0  # until the head has been read
        self.headers: dict[bytes, bytes] = {}
        self.is_complete = False
        self.keeps_alive = False  # whether the connection may carry another request once this is complete
        self._rest = b""
        self._num_left = 0  # bytes of the body, or of the chunk, still to come
        self._is_in_trailer = False
        self._feed_body = self._feed_head

    def feed(self, data: bytes) -> bytes:
        return self._feed_body(data)

    def end(self) -> bool:
        """The connection was closed: returns whether the response was complete."""
        if self._feed_body == self._feed_until_close:
            self.is_complete = True
        return self.is_complete

    def _feed_head(self, data: bytes) -> bytes:
        data = self._rest + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > _LONGEST_HEAD or not b"HTTP/1.".startswith(data[:7]):
                raise BadResponseError(f"the answer is not HTTP: it begins with {data[:40]!r}")
            self._rest = data
            return b""
        self._rest = b""
        status_line, *lines = data[:end].split(b"\r\n")
        version, _, rest = status_line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise BadResponseError(f"the answer is not HTTP: it begins with {status_line[:40]!r}")
        self.status = int(rest[:3])
        data = data[end + 4 :]
        if self.status // 100 == 1:  # "go on"; the answer itself is still to come
            self.status = 0
            return self._feed_head(data)
        self.headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
        }
        self.keeps_alive = version == b"HTTP/1.1" and self.headers.get(b"connection", b"").lower() != b"close"
        self._choose_framing()
        return b"" if self.is_complete else self._feed_body(data)

    def _choose_framing(self) -> None:
        if self.status in _BODILESS:
            self.is_complete = True
        elif self.headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
            self._feed_body = self._feed_chunked
        elif (length := self.headers.get(b"content-length")) is not None:
            if not length.isdigit():
                raise BadResponseError(f"the content length is {length!r}")
            self._num_left = int(length)
            self._feed_body = self._feed_counted
            self.is_complete = self._num_left == 0
        else:
            self.keeps_alive = False
            self._feed_body = self._feed_until_close

    def _feed_counted(self, data: bytes) -> bytes:
        if len(data) > self._num_left:
            self.keeps_alive = False  # more than was announced: nothing after it can be trusted
            data = data[: self._num_left]
        self._num_left -= len(data)
        self.is_complete = self._num_left == 0
        return data

    @staticmethod
    def _feed_until_close(data: bytes) -> bytes:
        return data

    def _feed_chunked(self, data: bytes) -> bytes:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        parts = []
        position, end_of_data = 0, len(data)
        while position < end_of_data:
            if self._num_left:
                part = data[position : position + self._num_left]
                parts.append(part)
                position += len(part)
                self._num_left -= len(part)
                continue
            end = data.find(b"\r\n", position)
            if end < 0:
                self._rest = data[position:]
                if len(self._rest) > _LONGEST_HEAD:
                    raise BadResponseError("the size of a chunk has no end")
                break
            line = data[position:end]
            position = end + 2
            if self._is_in_trailer:
                if not line:
                    self.is_complete = True
                    self.keeps_alive = self.keeps_alive and position == end_of_data
                    break
            elif line:  # an empty one is the end of the chunk before
                self._start_chunk(line)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _start_chunk(self, line: bytes) -> None:
        try:
            self._num_left = int(line.partition(b";")[0], 16)
        except ValueError:
            self._num_left = -1
        if self._num_left < 0:
            raise BadResponseError(f"the size of a chunk is {line[:40]!r}")
        self._is_in_trailer = self._num_left == 0
