"""Clients that offer HTTP/2 are answered as all others; heads without an end are refused, behind earlier answers."""

import gc
import json
import weakref
from collections.abc import Iterator

import pytest

from facet.server import request_protocol
from facet.server.request_parser import MAX_HEAD_BYTES
from facet.server.request_protocol import RequestProtocol
from tests.server.conftest import Scripted
from tests.server.raw_client import Client, connected, refusal
from tests.server.running import PATIENCE, RunningServer, wait_until

NUM_TOKENS = 20
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
LAST = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HALF = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX: "
TOO_LONG = HALF + b"x" * (MAX_HEAD_BYTES + 5000)  # behind other requests, a little more than the limit may pass


@pytest.fixture(scope="module")
def server(scripted: Scripted) -> Iterator[RunningServer]:
    with scripted([281] * NUM_TOKENS, engine={"seconds_per_turn": 0.02}) as (server, _):
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with connected(server) as client:
        yield client


def post(path: str, body: bytes, headers: bytes = b"", *, is_chunked: bool = False) -> tuple[bytes, bytes]:
    """Head and body."""
    frame = b"Transfer-Encoding: chunked\r\n" if is_chunked else b"Content-Length: %d\r\n" % len(body)
    head = b"POST %b HTTP/1.1\r\nHost: x\r\n%b%b\r\n" % (path.encode(), headers, frame)
    middle = len(body) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:middle], body[middle:]))
    return head, chunks + b"0\r\n\r\n" if is_chunked else body


def stream() -> bytes:
    return b"".join(post("/v1/completions", json.dumps({"prompt": "x", "max_tokens": 20, "stream": True}).encode()))


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("num_blanks", [0, 300_000])
def test_the_body_of_a_client_that_offers_http2(client: Client, is_chunked: bool, num_blanks: int) -> None:
    """In one packet with its head and behind it, with other requests before and behind it."""
    body = json.dumps({"prompt": "one two"}).encode() + b" " * num_blanks
    plain = b"".join(post("/tokenize", body, is_chunked=is_chunked))
    offering = b"".join(post("/tokenize", body, OFFER, is_chunked=is_chunked))
    client.send(plain + offering + offering + plain)
    head, rest = post("/tokenize", body, OFFER + b"Expect: 100-continue\r\n", is_chunked=is_chunked)
    client.send(head)
    received = client.read_until(CONTINUE)  # the server has read the head by now
    client.send(rest + LAST)
    received += client.read_all()
    assert received.count(b"HTTP/1.1 200 OK") == received.count(b"HTTP/1.1 ") - 1 == 6
    assert received.count(b'"count":') == 5


def test_a_body_is_no_request(client: Client) -> None:
    head, body = post("/tokenize", LAST, OFFER + b"Expect: 100-continue\r\n")
    client.send(head)
    client.read_until(CONTINUE)
    client.send(body)
    assert client.read_until(b"}").startswith(b"HTTP/1.1 400 ")
    client.send(LAST)
    assert client.read_all().count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_offers_without_a_body(client: Client, protocol: bytes) -> None:
    client.send(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n" % protocol + LAST)
    assert client.read_all().count(b"HTTP/1.1 200 OK") == 2


def test_connect(client: Client) -> None:
    client.send(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" + LAST)
    refusal(client.read_all(), 400)


def test_a_head_that_is_too_long(client: Client) -> None:
    client.send(TOO_LONG[:-1000])
    client.send(b"x" * 1000)
    message = f"The headers of the request have more than {MAX_HEAD_BYTES} bytes. Send fewer, or shorter ones."
    assert refusal(client.read_all(), 431) == {
        "error": {"message": message, "type": "RequestTooLargeError", "param": None, "code": 431}
    }


def test_the_refusal_has_the_form_of_its_api(client: Client) -> None:
    client.send(b"POST /v1/messages?" + b"x" * MAX_HEAD_BYTES)
    error = refusal(client.read_all(), 431)["error"]
    assert isinstance(error, dict)
    assert error["type"] == "request_too_large"


@pytest.mark.parametrize("refused", [TOO_LONG, b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_earlier_requests_are_answered_first(client: Client, refused: bytes) -> None:
    client.send(stream() + stream() + refused + LAST)
    received = client.socket.recv(1)
    client.send(LAST)  # nothing is read any more
    received += client.read_all()
    answers, marker, last = received.rpartition(b"HTTP/1.1 ")
    refusal(marker + last, 431 if refused is TOO_LONG else 400)
    assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b"HTTP/1.1 ") == 2
    assert answers.count(b"data: [DONE]") == 2
    assert answers.endswith(b"0\r\n\r\n")


def test_who_sends_on_can_read_the_refusal(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_protocol, "_SECONDS_TO_READ", PATIENCE)
    client.send(HALF + b"x" * (1 << 24))
    refusal(client.read_all(), 431)


def test_a_refused_connection_ends(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its client stays; and nothing of it waits for the garbage collector."""
    monkeypatch.setattr(request_protocol, "_SECONDS_TO_READ", 0.1)
    connections = server.server.server_state.connections
    wait_until(lambda: not connections)
    gc.disable()
    try:
        with connected(server) as client:
            client.send(HALF)
            wait_until(lambda: bool(connections))
            (protocol,) = connections
            assert isinstance(protocol, RequestProtocol)
            parser = weakref.ref(protocol.parser)
            del protocol
            client.send(TOO_LONG)
            wait_until(lambda: not connections)
            wait_until(lambda: parser() is None)
    finally:
        gc.enable()
