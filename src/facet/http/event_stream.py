"""Server-sent events: how the server writes them, and how clients read them from parts of any size.

Knows lines and their `data:`, not what the data mean.
"""

END_OF_STREAM = b"[DONE]"  # the data of the last event of an OpenAI stream


def as_event(data: bytes) -> bytes:
    """`data` may have no line breaks."""
    return b"data: " + data + b"\n\n"


class EventReader:
    """Takes bytes as they arrive and returns the data of every complete event."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []  # lines of an event whose end has not come

    def feed(self, part: bytes) -> list[bytes]:
        lines = (self._rest + part).split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in lines:
            if line[:5] == b"data:":
                self._data.append(line[5:].strip())
            elif self._data and (not line or line == b"\r"):
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
            # Anything else is a comment, sent to keep connections alive, or a field that is not needed.
        return events

    def end(self) -> list[bytes]:
        """What is left when a stream ends without the blank line that should close an event."""
        return self.feed(b"\n\n")
