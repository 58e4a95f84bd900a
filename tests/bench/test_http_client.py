"""Connections: kept, given up, encrypted, refused. Against a server on a real port."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from facet.bench.http_client import (
    BadAnswerError,
    CannotConnectError,
    ConnectionLostError,
    EndedEarlyError,
    HttpClient,
)
from facet.errors import ConfigError
from facet.http.server_url import ServerUrl
from tests.bench.fake_server import Call, fake_server
from tests.ports import closed_port

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
Loop = Callable[[], asyncio.AbstractEventLoop]


def run(loop: Loop, work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(asyncio.wait_for(work, 20))


async def post(client: HttpClient, body: bytes = b"{}") -> tuple[int, bytes, bytes]:
    """Status, what went to the reader, what came back otherwise."""
    pieces: list[bytes] = []
    response = await client.post("/x", body, lambda piece, now: pieces.append(piece))
    return response.status, b"".join(pieces), response.body


async def post_once(client: HttpClient, body: bytes = b"{}") -> tuple[int, bytes, bytes]:
    with contextlib.closing(client):
        return await post(client, body)


def client_of(port: int, **options: Any) -> HttpClient:
    return HttpClient(ServerUrl(False, "127.0.0.1", port, ""), {}, **options)


@LOOPS
def test_one_connection_serves_one_request_after_the_other(loop: Loop) -> None:
    async def answer(call: Call) -> None:
        await call.head()
        await call.event(b"hello")
        await call.send(b"0\r\n\r\n")

    async def work(port: int) -> None:
        client = client_of(port)
        for _ in range(3):
            assert await post(client) == (200, b"hello", b"")
        assert (await client.get("/v1/models")).status == 200
        assert await asyncio.gather(*(post(client) for _ in range(4))) == [(200, b"hello", b"")] * 4
        client.close()

    with fake_server(answer) as server:
        run(loop, work(server.port))
        assert server.num_connections <= 4
        assert [asked.connection for asked in server.asked[:3]] == [0, 0, 0]
        assert len(server.asked) == 7


@LOOPS
def test_a_large_body_arrives_whole(loop: Loop) -> None:
    async def answer(call: Call) -> None:
        await call.json(200, {"length": len(call.asked.body["prompt"])})

    with fake_server(answer) as server:
        status, body, _ = run(loop, post_once(client_of(server.port), b'{"prompt": "%s"}' % (b"x" * 3_000_000)))
    assert (status, body) == (200, b'{"length": 3000000}')


def test_a_connection_closed_between_requests_is_no_failure() -> None:
    async def answer(call: Call) -> None:
        if call.asked.number == 1:
            call.reset()  # as a server does whose patience ends as the request comes in
        else:
            await call.json(200, call.asked.number)

    async def work(port: int) -> None:
        client = client_of(port)
        assert await post(client) == (200, b"0", b"")
        assert await post(client) == (200, b"2", b"")
        client.close()

    with fake_server(answer) as server:
        run(asyncio.new_event_loop, work(server.port))
        assert server.num_connections == 2


@LOOPS
def test_what_can_go_wrong_after_connecting(loop: Loop) -> None:
    async def answer(call: Call) -> None:
        match call.asked.path, call.asked.body:
            case _, "reset at once":
                call.reset()
            case _, "close in the middle":
                await call.head()
                await call.event(b"hello")
                call.writer.close()
            case _, "no http":
                await call.send(b"what?\r\n\r\n")

    async def fail(port: int, what: str) -> None:
        await post_once(client_of(port), b'"%s"' % what.encode())

    with fake_server(answer) as server:
        with pytest.raises(ConnectionLostError):
            run(loop, fail(server.port, "reset at once"))
        with pytest.raises(EndedEarlyError):
            run(loop, fail(server.port, "close in the middle"))
        with pytest.raises(BadAnswerError, match="not HTTP"):
            run(loop, fail(server.port, "no http"))


def test_a_reader_that_gives_up_fails_the_request() -> None:
    async def answer(call: Call) -> None:
        await call.head()
        await call.event(b"hello")

    def refuse(piece: bytes, now: float) -> None:
        raise BadAnswerError("not this")

    async def work(port: int) -> None:
        with contextlib.closing(client_of(port)) as client:
            await client.post("/x", b"{}", refuse)

    with fake_server(answer) as server, pytest.raises(BadAnswerError, match="not this"):
        run(asyncio.new_event_loop, work(server.port))


@LOOPS
def test_nobody_there(loop: Loop) -> None:
    with closed_port() as port, pytest.raises(CannotConnectError, match=rf"127\.0\.0\.1:{port}: .*refused"):
        run(loop, post_once(client_of(port)))
    with pytest.raises(CannotConnectError, match=r"nowhere\.invalid:80: "):
        run(loop, post_once(HttpClient(ServerUrl.parse("http://nowhere.invalid"), {})))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run([*command.split(), "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


@LOOPS
def test_https(loop: Loop, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(call: Call) -> None:
        await call.json(200, call.asked.path)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with fake_server(answer, tls=context) as server:
        url = ServerUrl.parse(f"https://localhost:{server.port}")
        with pytest.raises(CannotConnectError, match=r"(?i)certificate"):
            run(loop, post_once(HttpClient(url, {})))
        assert run(loop, post_once(HttpClient(url, {}, is_insecure=True))) == (200, b'"/x"', b"")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert run(loop, post_once(HttpClient(url, {}))) == (200, b'"/x"', b"")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", ServerUrl(False, "127.0.0.1", 8000, "")),
        ("https://example.org/some/path/", ServerUrl(True, "example.org", 443, "/some/path")),
        ("http://[::1]:9000", ServerUrl(False, "::1", 9000, "")),
        ("localhost:8000", ServerUrl(False, "localhost", 8000, "")),
    ],
)
def test_urls(url: str, expected: ServerUrl) -> None:
    assert ServerUrl.parse(url) == expected
    assert ServerUrl.parse(str(expected)) == expected


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://x:99999", "http://x:y", "http://x/?a=b", "http://a:b@x", "http://..x", ""]
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match="URL"):
        ServerUrl.parse(url)


def test_v1_is_said_once() -> None:
    assert ServerUrl.parse("http://x/v1").target("/v1/completions") == "/v1/completions"
    assert ServerUrl.parse("http://x/api/v1").target("/v1/completions") == "/api/v1/completions"
    assert ServerUrl.parse("http://x/api").target("/v1/completions") == "/api/v1/completions"
    assert ServerUrl.parse("http://x/v1").target("/generate") == "/v1/generate"


def test_a_path_is_written_as_http_asks() -> None:
    assert ServerUrl.parse("http://x").target("some thing/é?a=b") == "/some%20thing/%C3%A9?a=b"
    assert ServerUrl.parse("http://bücher.example").host == "xn--bcher-kva.example"
