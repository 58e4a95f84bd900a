"""Requests that offer another protocol are read as if the offer were a header without a meaning; long heads are not."""

import itertools
import re
from dataclasses import dataclass, field
from typing import Any

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from facet.server.errors import HttpError
from facet.server.request_parser import MAX_HEAD_BYTES, RequestParser

OFFERS = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    b"upgrade: websocket\r\nX: y\r\nConnection: close, upgrade\r\n",
    b"Connection: keep-alive\r\nUpgrade: a\r\nCONNECTION:upgrade\r\nUpgrade: b\r\n",
    b"Upgrade: h2c\r\n",
    b"Connection: upgrade\r\n",
    b"",
)
PLAIN = b"GET /plain HTTP/1.1\r\nHost: x\r\n\r\n"
BODIES = (b"", b"{}", b"\r\n\r\n", b"0\r\n\r\n", PLAIN, b"POST /inner HTTP/1.1\r\n" + OFFERS[0] + b"\r\n", b"x" * 9000)
# Other numbers than those of the body's bytes, and codings that no server knows.
FRAMES = (
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
)


@dataclass
class Read:
    method: bytes
    version: str
    url: bytes
    headers: list[tuple[bytes, bytes]]
    keeps_alive: bool
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False


@dataclass
class Recorder:
    """Stands in for uvicorn's protocol."""

    parser: Any = None
    url: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    requests: list[Read] = field(default_factory=list)

    def on_message_begin(self) -> None:
        self.url, self.headers = b"", []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self.parser
        request = Read(
            parser.get_method(), parser.get_http_version(), self.url, self.headers, parser.should_keep_alive()
        )
        self.requests.append(request)

    def on_body(self, body: bytes) -> None:
        self.requests[-1].body += body

    def on_message_complete(self) -> None:
        self.requests[-1].is_complete = True


class WithoutTrailers(Recorder):
    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.requests or self.headers is not self.requests[-1].headers:
            super().on_header(name, value)


def read(*parts: bytes) -> tuple[list[Read], bool]:
    """The requests, and whether something else followed them."""
    recorder = Recorder()
    recorder.parser = RequestParser(recorder)  # type: ignore[arg-type]
    try:
        for part in parts:
            recorder.parser.feed_data(part)
    except httptools.HttpParserError:
        return recorder.requests, True
    return recorder.requests, False


def read_by_httptools(data: bytes) -> tuple[list[Read], bool]:
    recorder = WithoutTrailers()
    recorder.parser = httptools.HttpRequestParser(recorder)
    recorder.parser.set_dangerous_leniencies(lenient_data_after_close=True)
    try:
        recorder.parser.feed_data(data)
    except httptools.HttpParserError:
        return recorder.requests, True
    return recorder.requests, False


def without_meaning(data: bytes | bytearray) -> bytes:
    """The same bytes, but what could be an offer of an upgrade has the name of no header."""
    return re.sub(rb"upgrade(?=:)", b"xpgrade", data, flags=re.IGNORECASE)


def check(data: bytes, places: list[int]) -> None:
    cuts = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    found, is_broken = read(*(data[start:end] for start, end in itertools.pairwise(cuts)))
    expected, is_broken_there = read_by_httptools(without_meaning(data))
    for request in (*found, *expected):
        request.headers = [header for header in request.headers if header[0] not in (b"upgrade", b"xpgrade")]
        request.body = bytearray(without_meaning(request.body))
    assert (found, is_broken) == (expected, is_broken_there)


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    chunks = [b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in parts]
    return b"".join((*chunks, b"0\r\nUpgrade: trailer\r\nAuthorization: trailer\r\n\r\n"))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    method, offer, body = (draw(st.sampled_from(some)) for some in ((b"POST", b"GET", b"M-SEARCH"), OFFERS, BODIES))
    form = draw(st.sampled_from(("length", "chunks", "wrong")))
    match form:
        case "length":
            frame = b"Content-Length: %d\r\n" % len(body)
        case "chunks":
            frame, body = b"Transfer-Encoding: chunked\r\n", chunked(body, draw(st.sampled_from((1, 100, 7000))))
        case _:
            frame = draw(st.sampled_from(FRAMES))
    version = draw(st.sampled_from((b"1.1", b"1.1", b"1.1", b"1.0")))
    lines = draw(st.permutations((offer, frame, b"Host: x\r\nEmpty:\r\nTabs:\t a \xff\t\r\n")))
    return b"%b /path?a=b HTTP/%b\r\n%b\r\n%b" % (method, version, b"".join(lines), body)


PLACES = st.lists(st.integers(0, 1 << 16), max_size=6)


@settings(max_examples=300)
@example([PLAIN[:-2] + OFFERS[0] + b"\r\n", PLAIN], [])
@given(st.lists(requests(), min_size=1, max_size=4), PLACES)
def test_as_if_nothing_had_been_offered(sent: list[bytes], places: list[int]) -> None:
    check(b"".join(sent), places)


@settings(max_examples=300)
@given(st.lists(requests(), min_size=1, max_size=3), PLACES, st.lists(st.tuples(st.integers(0, 1 << 16), st.binary())))
def test_broken_requests(sent: list[bytes], places: list[int], changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(b"".join(sent))
    for place, change in changes:
        place %= len(data) + 1
        data[place : place + 1] = change
    check(bytes(data), places)


def test_every_place_to_cut() -> None:
    body = b"5\r\nhello\r\n0\r\nT: x\r\n\r\n"
    data = b"POST / HTTP/1.1\r\n" + OFFERS[0] + b"Transfer-Encoding: chunked\r\n\r\n" + body + PLAIN
    for place in range(len(data)):
        check(data, [place])


def test_nothing_is_read_behind_connect() -> None:
    recorder = Recorder()
    recorder.parser = RequestParser(recorder)  # type: ignore[arg-type]
    with pytest.raises(HttpError) as raised:
        recorder.parser.feed_data(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n" + PLAIN)
    assert raised.value.status == 400
    assert recorder.requests == []


def head(num_bytes: int, *, lines: bytes = b"") -> bytes:
    start = b"POST /long HTTP/1.1\r\nContent-Length: 3\r\n%bX: " % lines
    return start + b"x" * (num_bytes - len(start) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize("size", [1 << 20, 5000, 1000])
@pytest.mark.parametrize("lines", [b"", OFFERS[0]])
def test_the_longest_head(lines: bytes, size: int) -> None:
    """To the byte, for every request of a connection."""

    def send(data: bytes) -> None:
        for start in range(0, len(data), size):
            recorder.parser.feed_data(data[start : start + size])

    longest, longer = (head(num_bytes, lines=lines) for num_bytes in (MAX_HEAD_BYTES, MAX_HEAD_BYTES + 1))
    assert len(longest) == MAX_HEAD_BYTES
    for num_before in (0, 1, 2):
        recorder = Recorder()
        recorder.parser = RequestParser(recorder)  # type: ignore[arg-type]
        for _ in range(num_before):
            send(longest + b"abc")
        with pytest.raises(HttpError, match=f"more than {MAX_HEAD_BYTES} bytes") as raised:
            send(longer)
        assert raised.value.status == 431
        assert [request.is_complete for request in recorder.requests] == [True] * num_before


@pytest.mark.parametrize("start", [b"", b"GET /", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nX: y\r\nX"])
def test_a_head_without_an_end(start: bytes) -> None:
    endless = b"GET " + b" " * (2 * MAX_HEAD_BYTES) if not start else start + b"x" * (2 * MAX_HEAD_BYTES)
    with pytest.raises(HttpError) as raised:
        read(endless)
    assert raised.value.status == 431
    with pytest.raises(HttpError):
        read(start + b"Y: z\r\n" * MAX_HEAD_BYTES if start.endswith(b"\n") else endless)
    # Where the head begins in a packet with something else, a little more may pass.
    with pytest.raises(HttpError):
        read(PLAIN + endless[: MAX_HEAD_BYTES + 5000])


def test_heads_in_one_packet_have_limits_of_their_own() -> None:
    data = b"".join(head(MAX_HEAD_BYTES - 5000, lines=lines) + b"abc" for lines in (OFFERS[0], b"") * 2)
    found, is_broken = read(data)
    assert not is_broken
    assert [request.body for request in found] == [b"abc"] * 4


def test_bodies_do_not_count() -> None:
    body = b"x" * (5 * MAX_HEAD_BYTES)
    for frame, sent in (
        (b"Content-Length: %d\r\n" % len(body), body),
        (b"Transfer-Encoding: chunked\r\n", chunked(body, 1)),
        (b"Transfer-Encoding: chunked\r\n", chunked(body, len(body))),
    ):
        found, is_broken = read((b"POST / HTTP/1.1\r\n" + OFFERS[0] + frame + b"\r\n" + sent) * 2)
        assert not is_broken
        assert [(request.body, request.is_complete) for request in found] == [(body, True)] * 2


@pytest.mark.parametrize("sent", [b"5;", b"5;a=", b"0\r\n", b"0\r\nT: ", b"2\r\nab\r\n0\r\nT"])
def test_trailers_and_extensions_without_an_end(sent: bytes) -> None:
    start = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    padding = b"x" * (MAX_HEAD_BYTES // 2)
    assert not read(start, sent, padding)[1]
    assert read(start, sent, padding, padding)[1]


def test_long_trailers_do_not_count_for_the_next_head() -> None:
    trailers = b"0\r\nT: " + b"x" * (MAX_HEAD_BYTES - 2000) + b"\r\n\r\n"
    start = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    found, is_broken = read(start, trailers + head(10000) + b"abc")
    assert not is_broken
    assert [request.is_complete for request in found] == [True, True]


def test_what_follows_the_last_request_does_not_count() -> None:
    """httptools throws it away."""
    found, is_broken = read(PLAIN[:-2] + b"Connection: close\r\n\r\n", *[b"x" * MAX_HEAD_BYTES] * 3)
    assert not is_broken
    assert len(found) == 1
