"""Clients that stop in the middle of a request: their connections end in time, and those of others are left alone."""

import json
import time
from collections.abc import Iterator

import pytest

from facet.server.request_deadline import RequestDeadlineProtocol
from tests.server.conftest import Scripted
from tests.server.raw_client import Client, connected, refusal
from tests.server.running import RunningServer, wait_until

TIMEOUT = 0.5
KEEP_ALIVE = 1.0
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"  # not taken
HALF = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le"
END_OF_CHUNKS = b"\r\n0\r\n\r\n"
NUM_TOKENS = 50
SECONDS_PER_TOKEN = 0.02  # an answer takes twice the timeout


@pytest.fixture(scope="module")
def server(scripted: Scripted) -> Iterator[RunningServer]:
    engine = {"seconds_per_turn": SECONDS_PER_TOKEN}
    with scripted([281] * NUM_TOKENS, engine=engine, request_timeout=TIMEOUT) as (server, _):
        server.server.config.timeout_keep_alive = KEEP_ALIVE  # type: ignore[assignment]  # an int, says uvicorn
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with connected(server) as client:
        yield client


@pytest.mark.parametrize("drip", [b"", b"a"])
def test_half_headers_are_refused_in_time(client: Client, drip: bytes) -> None:
    client.send(HALF)
    message = f"The headers of the request did not arrive within {TIMEOUT} seconds."
    assert refusal(client.read_all(drip), 408) == {
        "error": {"message": message, "type": "RequestTimeoutError", "param": None, "code": 408}
    }
    assert client.seconds > 0.9 * TIMEOUT


def test_the_refusal_has_the_form_of_its_api(client: Client) -> None:
    client.send(b"POST /v1/messages HTTP/1.1\r\n")
    assert refusal(client.read_all(), 408)["type"] == "error"


@pytest.mark.parametrize("drip", [b"", b"\r\n"])
def test_without_a_request_a_connection_is_closed_silently(client: Client, drip: bytes) -> None:
    assert client.read_all(drip) == b""
    assert client.seconds > 0.9 * TIMEOUT


def test_time_counts_from_the_first_byte_of_a_request(server: RunningServer) -> None:
    """Browsers connect before they have something to ask."""
    for _ in range(10):
        with connected(server) as client:
            time.sleep(0.5 * TIMEOUT)
            client.send(HALF)
            if received := client.read_all():
                break  # or a busy machine has sent the first byte too late
    refusal(received, 408)
    assert client.seconds > 1.4 * TIMEOUT


def test_headers_in_several_parts(client: Client) -> None:
    for place in range(0, len(HEALTH), 9):
        client.send(HEALTH[place : place + 9])
        time.sleep(0.02)
    assert b" 200 OK" in client.read_until(b"\r\n\r\n")


@pytest.mark.parametrize("headers", [b"", UPGRADE])
def test_an_idle_connection_is_kept_as_long_as_before(client: Client, headers: bytes) -> None:
    client.send(HEALTH[:-2] + headers + b"\r\n")
    client.read_until(b"\r\n\r\n")
    assert client.read_all() == b""
    assert client.seconds > 0.9 * KEEP_ALIVE > TIMEOUT


def test_half_headers_of_the_next_request(client: Client) -> None:
    client.send(HEALTH)
    client.read_until(b"\r\n\r\n")
    client.send(HALF)
    refusal(client.read_all(drip=b"a"), 408)


@pytest.mark.parametrize("drip", [b"", b" "])
def test_a_body_that_does_not_arrive(client: Client, drip: bytes) -> None:
    client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    error = refusal(client.read_all(drip), 408)["error"]
    assert isinstance(error, dict)
    assert error["message"].endswith(f"bytes of the body arrived within {TIMEOUT} seconds.")


def test_a_body_that_nobody_reads(client: Client) -> None:
    """It is answered before it has arrived, and what still arrives does not keep the connection."""
    client.send(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
    response = client.read_all(drip=b" ")
    assert response.startswith(b"HTTP/1.1 404 ")
    assert response.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("is_split", [False, True])
def test_pipelined_requests_and_long_answers(client: Client, is_split: bool) -> None:
    """While the first answer is streamed, time does not count, neither for it nor for what follows it."""
    body = json.dumps({"prompt": "x", "max_tokens": NUM_TOKENS, "stream": True}).encode()
    first = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    second = HEALTH[:-2] + b"Connection: close\r\n\r\n"
    received = b""
    if is_split:
        client.send(first + second[:20])
        received += client.read_until(END_OF_CHUNKS)
        client.send(second[20:])
    else:
        client.send(first + second)
    received += client.read_all()
    assert client.seconds > 1.5 * TIMEOUT
    assert received.count(b"data: [DONE]") == 1
    assert received.count(b"HTTP/1.1 200 OK") == 2


def test_nothing_is_left_of_a_client_that_leaves(server: RunningServer) -> None:
    connections = server.server.server_state.connections
    wait_until(lambda: not connections)
    with connected(server) as client:
        client.send(HALF)
        wait_until(lambda: bool(connections))
        (protocol,) = connections
        assert isinstance(protocol, RequestDeadlineProtocol)
    wait_until(lambda: not connections)
    wait_until(lambda: protocol._timer is None)
