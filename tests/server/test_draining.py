"""A server that is told to stop: running requests finish, and those that cannot are told so."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from facet.server.draining import DrainingServer
from tests.server.conftest import Scripted
from tests.server.running import RunningServer, wait_until

ASK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4000}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": ASK,
    "/v1/completions": {"prompt": "hello", "max_tokens": 4000},
    "/v1/messages": ASK,
    "/v1/responses": {"input": "hello"},
    "/api/chat": {"model": "tiny", "messages": ASK["messages"]},
}
STOPPING = "The server is stopping and could not finish this request. Send it again later."


def stop_while_asked(
    server: RunningServer, is_asked: Callable[[int], bool], *, stream: bool
) -> Sequence[httpx.Response]:
    """The responses to all of `BODIES`, none of which can be finished. `is_asked` tells that so many run."""
    with ThreadPoolExecutor(len(BODIES)) as threads:
        asked = [threads.submit(server.post, path, {**body, "stream": stream}) for path, body in BODIES.items()]
        wait_until(lambda: is_asked(len(BODIES)))
        server.server.config.timeout_graceful_shutdown = 1
        server.server.should_exit = True
        return [each.result() for each in asked]


def check_told(responses: Sequence[httpx.Response], *, stream: bool) -> None:
    for path, response in zip(BODIES, responses, strict=True):
        if stream:
            last = response.text.strip().splitlines()[-1].removeprefix("data: ")
            assert response.status_code == 200
            assert STOPPING in last, path
            json.loads(last)
        else:
            assert response.status_code == 503, path
            assert int(response.headers["retry-after"]) > 0
            error = response.json()["error"]
            assert (error if path.startswith("/api/") else error["message"]) == STOPPING
    if not stream:
        assert responses[0].json()["error"]["type"] == "ServiceUnavailableError"


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_finished_in_time_is_told_so(scripted: Scripted, stream: bool) -> None:
    with scripted([281] * 4000, engine={"seconds_per_turn": 0.01}) as (server, engine):
        responses = stop_while_asked(server, lambda count: len(engine.submitted) == count, stream=stream)
    check_told(responses, stream=stream)


def draining_server(*, is_dead: bool) -> DrainingServer:
    return DrainingServer(uvicorn.Config(lambda: None), lambda: is_dead)


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_server_stops_when_its_engine_is_dead(is_dead: bool) -> None:
    assert asyncio.run(draining_server(is_dead=is_dead).on_tick(1)) is is_dead


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_server_at_once(second: signal.Signals) -> None:
    server = draining_server(is_dead=False)
    server._stop(signal.SIGTERM)
    assert (server.should_exit, server.force_exit) == (True, False)
    server._stop(second)
    assert server.force_exit


def test_a_second_signal_cuts_requests_short_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The app still closes what it holds."""
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            seen.append("closed")
            await send({"type": "lifespan.shutdown.complete"})
        else:
            seen.append("asked")
            await asyncio.Event().wait()

    async def stop_while_asked() -> None:
        server = DrainingServer(uvicorn.Config(app, log_config=None, lifespan="on"))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            while not seen:
                await asyncio.sleep(0.01)
            server._stop(signal.SIGINT)
            await asyncio.sleep(0.2)
            assert not serving.done()
            server._stop(signal.SIGINT)
            await asyncio.wait_for(serving, timeout=10)
            writer.close()

    with caplog.at_level("INFO"):
        asyncio.run(stop_while_asked())
    assert seen == ["asked", "closed"]
    assert "SIGINT again: stopping at once." in caplog.text
    assert "Traceback" not in caplog.text
