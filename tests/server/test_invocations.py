"""/invocations: requests of two endpoints at one path, with all that holds for them elsewhere."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import Scripted
from tests.server.running import RunningServer, wait_until
from tests.server.test_bad_input import DEEP, refusal

INVOCATIONS, CHAT, COMPLETIONS = "/invocations", "/v1/chat/completions", "/v1/completions"
KEY = {"x-api-key": "secret"}
MESSAGES = [{"role": "user", "content": "one"}]


@pytest.fixture(scope="module")
def server(scripted: Scripted) -> Iterator[RunningServer]:
    with scripted("one two three", api_key=("secret",), max_request_bytes=1 << 20) as (server, _):
        yield server


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": MESSAGES}),
        (CHAT, {"messages": MESSAGES, "prompt": "one"}),  # as in vLLM
        (COMPLETIONS, {"prompt": "one", "max_tokens": 3}),
        (COMPLETIONS, {"prompt": [5, 6], "messages": None, "max_tokens": 3}),
    ],
)
def test_the_answer_is_that_of_the_endpoint_meant(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    answers = [server.post(place, body, headers=KEY).json() for place in (INVOCATIONS, path)]
    for name in ("object", "usage"):
        assert answers[0][name] == answers[1][name]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_a_stream(server: RunningServer) -> None:
    with server.client(headers=KEY) as client:
        body = {"messages": MESSAGES, "stream": True}
        with client.stream("POST", INVOCATIONS, json=body) as response:
            lines = [line for line in response.iter_lines() if line]
    assert len(lines) > 3
    assert lines[-1] == "data: [DONE]"


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"{}", 400, "neither messages nor a prompt"),
        (b'{"input": "text"}', 400, "neither messages nor a prompt"),
        (b'{"messages": null}', 400, "neither messages nor a prompt"),
        (b"[]", 400, "must be a JSON object"),
        (b'{"messages": [', 400, "not valid JSON"),
        (b"", 400, "not valid JSON"),
        (b'{"messages": ["\xff"]}', 400, "not valid JSON"),
        (DEEP, 400, "nested too deeply"),
        (b'{"messages": []}', 400, "messages is empty"),
        (b'{"prompt": "one", "model": "other"}', 404, "This server has tiny"),
        (b"x" * (2 << 20), 413, "1048576 bytes"),
    ],
    ids=range(11),
)
def test_what_is_refused(server: RunningServer, content: bytes, status: int, words: str) -> None:
    with server.client(headers=KEY) as client:
        assert words in refusal(client.post(INVOCATIONS, content=content), status)["message"]


def test_a_key_is_needed_and_requests_are_counted(server: RunningServer) -> None:
    refusal(server.post(INVOCATIONS, {"messages": MESSAGES}), 401)
    assert 'handler="/invocations"' in server.get("/metrics").text


def test_a_client_that_leaves_ends_its_request(scripted: Scripted) -> None:
    with scripted([281] * 4000, engine={"seconds_per_turn": 0.002}) as (server, engine):
        body = {"prompt": "x", "max_tokens": 4000, "stream": True}
        with server.client() as client, client.stream("POST", INVOCATIONS, json=body) as response:
            next(response.iter_lines())
        wait_until(lambda: len(engine.cancelled) == 1)
