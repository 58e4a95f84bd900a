"""Every refusal has its shape, its status and its field, and the server goes on serving."""

import gzip
import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.chat.conversations import WEATHER_TOOL
from tests.server.conftest import Scripted
from tests.server.running import RunningServer
from tests.server.scripted_engine import ScriptedEngine

IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
OTHER_TOOL = {"type": "function", "function": {"name": "other"}}
BAD_SCHEMA = {"type": "json_schema", "json_schema": {"schema": 5}}
LONG_NUMBER = '{"type": "integer", "maximum": ' + "1" * 5000 + "}"
TAGGED = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = [{"role": "user", "content": "one"}]
DEEP = b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.fixture(scope="module")
def both(scripted: Scripted) -> Iterator[tuple[RunningServer, ScriptedEngine]]:
    with scripted(
        "one two three", max_request_bytes=1 << 20, request_timeout=1.0, max_num_seqs=8, max_waiting_requests=8
    ) as pair:
        yield pair


@pytest.fixture
def server(both: tuple[RunningServer, ScriptedEngine]) -> Iterator[RunningServer]:
    yield both[0]
    assert both[0].post(CHAT, {"messages": ASK}).status_code == 200  # still serving


def refusal(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    error: dict[str, Any] = body["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["code"] == status
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (CHAT, {}, "messages", "messages is required"),
        (CHAT, {"messages": []}, "messages", "messages is empty"),
        (CHAT, {"messages": "one"}, "messages", "expected array, got str"),
        (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages", "'king'"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages", "no content"),
        (CHAT, {"messages": [5]}, "messages", "messages[0]"),
        (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages", "reads text only, no images"),
        (CHAT, {"messages": ASK, "tools": [WEATHER_TOOL], "tool_choice": "maybe"}, "tool_choice", "'maybe'"),
        (CHAT, {"messages": ASK, "tools": [WEATHER_TOOL], "tool_choice": OTHER_TOOL}, "tool_choice", "'other'"),
        (CHAT, {"messages": ASK, "tool_choice": "required"}, "tool_choice", "no tools"),
        (CHAT, {"messages": ASK, "tools": [{"type": "function"}]}, "tools", "tools[0].function"),
        (CHAT, {"messages": ASK, "tools": [WEATHER_TOOL, WEATHER_TOOL]}, "tools", "twice"),
        (CHAT, {"messages": ASK, "response_format": {"type": "xml"}}, "response_format", "'xml'"),
        (CHAT, {"messages": ASK, "response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        (CHAT, {"messages": ASK, "response_format": BAD_SCHEMA}, "response_format", "not an object"),
        (CHAT, {"messages": ASK, "tools": [WEATHER_TOOL], "response_format": TAGGED}, "response_format", "tool_cho"),
        (CHAT, {"messages": ASK, "structured_outputs": {}}, "structured_outputs", "one of json"),
        (CHAT, {"messages": ASK, "structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "not 2"),
        (CHAT, {"messages": ASK, "structured_outputs": {"json": "[" * 50_000}}, "structured_outputs", "too deeply"),
        (CHAT, {"messages": ASK, "structured_outputs": {"json": LONG_NUMBER}}, "structured_outputs", "4300 digits"),
        (CHAT, {"messages": ASK, "structured_outputs": {"structural_tag": "[" * 50_000}}, "structured_outputs", "deep"),
        (CHAT, {"messages": ASK, "reasoning_effort": "extreme"}, "reasoning_effort", "'extreme'"),
        (CHAT, {"messages": ASK, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "'messages'"),
        (CHAT, {"messages": ASK, "audio": {"voice": "x"}}, "audio", "not supported"),
        (CHAT, {"messages": ASK, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "0 to 20"),
        (CHAT, {"messages": ASK, "top_logprobs": 2}, "top_logprobs", "Set logprobs to true"),
        (CHAT, {"messages": ASK, "logprob_token_ids": [1]}, "logprob_token_ids", "Set logprobs to true"),
        (CHAT, {"messages": ASK, "logprobs": 3}, "logprobs", "expected bool"),
        (CHAT, {"messages": ASK, "continue_final_message": True}, "continue_final_message", "not a text"),
        (
            CHAT,
            {"messages": ASK, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "Set one of them",
        ),
        (COMPLETIONS, {}, "prompt", "prompt is missing"),
        (COMPLETIONS, {"prompt": []}, "prompt", "empty"),
        (COMPLETIONS, {"prompt": {"text": "x"}}, "prompt", "got object"),
        (COMPLETIONS, {"prompt": [[1, 2], "x", 5]}, "prompt", "mixes"),
        (COMPLETIONS, {"prompt": [1.5]}, "prompt[0]", "float"),
        (COMPLETIONS, {"prompt": "x", "suffix": "y"}, "suffix", "suffix is not supported"),
        (COMPLETIONS, {"prompt": "x", "best_of": 3}, "best_of", "best_of is not supported"),
        (COMPLETIONS, {"prompt": "x", "use_beam_search": True}, "use_beam_search", "not supported"),
        (COMPLETIONS, {"prompt": "x", "guided_json": {"a": 1}, "guided_regex": "a"}, "guided_regex", "one of them"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": "many"}, "max_tokens", "expected int | null, got str"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, "max_tokens", "1 or more"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": -5}, "max_tokens", "1 or more"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 10**30}, "max_tokens", "expected int <="),
        (COMPLETIONS, {"prompt": [10**30]}, "prompt[0]", "expected int <="),
        (COMPLETIONS, {"prompt": "x", "n": 0}, "n", "from 1"),
        (COMPLETIONS, {"prompt": "x", "n": 10**6}, "n", "16384"),
        (COMPLETIONS, {"prompt": "x", "n": 1000}, "n", "at most 16"),
        (COMPLETIONS, {"prompt": ["x"] * 1000}, "prompt", "at most 16"),
        (COMPLETIONS, {"prompt": "x", "temperature": -1}, "temperature", "temperature"),
        (COMPLETIONS, {"prompt": "x", "temperature": 1e400}, None, "not valid JSON"),
        (COMPLETIONS, {"prompt": "x", "top_p": 2}, "top_p", "top_p"),
        (COMPLETIONS, {"prompt": "x", "stop": [""]}, "stop", "empty"),
        (COMPLETIONS, {"prompt": "x", "logprobs": 21}, "logprobs", "0 to 20"),
        (COMPLETIONS, {"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream"),
        (COMPLETIONS, {"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options", "stream"),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"five": 1}}, "logit_bias", "'five'"),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"5": "x"}}, "logit_bias", "a value in logit_bias: expected float"),
        (CHAT, {"messages": ASK, "max_tokens": 0}, "max_tokens", "max_tokens is 0, but must be 1 or more."),
        (
            CHAT,
            {"messages": ASK, "max_completion_tokens": 0},
            "max_completion_tokens",
            "max_completion_tokens is 0, but must be 1 or more.",
        ),
        (
            CHAT,
            {"messages": ASK, "max_completion_tokens": 3, "min_tokens": 5},
            "min_tokens",
            "max_completion_tokens is 3",
        ),
        (CHAT, {"messages": ASK, "reasoning": {"effort": "extreme"}}, "reasoning.effort", "reasoning.effort is 'ext"),
        (
            CHAT,
            {"messages": ASK, "reasoning": {"max_tokens": 10**6}},
            "reasoning.max_tokens",
            "reasoning.max_tokens is 1000000",
        ),
        (
            CHAT,
            {
                "messages": [
                    *ASK,
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"a": ["x\\uD83dy"]}'}}],
                    },
                ]
            },
            "messages",
            "messages[1].tool_calls[0].function.arguments holds \\ud83d, half of a surrogate pair",
        ),
        (COMPLETIONS, {"prompt": "x\ud800yyyyyyyy"}, None, "not valid JSON"),
        ("/tokenize", {}, "prompt", "either prompt or messages"),
        ("/tokenize", {"prompt": "x", "messages": ASK}, "prompt", "either"),
        ("/detokenize", {"tokens": [5, 480]}, "tokens", "0 to 479"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]", "expected int"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_named(server: RunningServer, path: str, body: Any, param: str | None, words: str) -> None:
    with server.client() as client:
        text = json.dumps(body)
        error = refusal(client.post(path, content=text, headers={"content-type": "application/json"}), 400)
    assert words in error["message"]
    assert error["param"] == param
    assert error["type"] == "BadRequestError"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"{'prompt': 1}", b"\xff\xfe", b'{"prompt": "\xff"}', DEEP, b"{" * 10**5],
    ids=lambda body: str(body[:20]),
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_bodies_that_are_no_request(server: RunningServer, path: str, body: bytes) -> None:
    with server.client() as client:
        refusal(client.post(path, content=body), 400)


def test_a_model_that_is_not_there(server: RunningServer) -> None:
    for path, body in ((CHAT, {"messages": ASK}), (COMPLETIONS, {"prompt": "x"})):
        error = refusal(server.post(path, {**body, "model": "other"}), 404)
        assert (error["param"], error["type"]) == ("model", "NotFoundError")
        assert "This server has tiny" in error["message"]
    refusal(server.get("/v1/models/other"), 404)


def test_paths_and_methods_that_are_not_there(server: RunningServer) -> None:
    assert "/v1/embeddings" in refusal(server.post("/v1/embeddings", {}), 404)["message"]
    for path, hint in (
        ("/chat/completions", "Did you mean /v1/chat/completions? Then the client's base URL must end with /v1."),
        ("/v1/v1/models", "Did you mean /v1/models? Then the client's base URL must end before /v1."),
        ("/v1/api/tags", "Did you mean /api/tags? Then the client's base URL must end before /v1."),
    ):
        assert hint in refusal(server.get(path), 404)["message"]
    assert "GET" in refusal(server.get(CHAT), 405)["message"]


def test_too_large_a_body_is_refused_unread(server: RunningServer) -> None:
    with server.client() as client:
        error = refusal(client.post(COMPLETIONS, content=b"x" * (2 << 20)), 413)
        assert "1048576 bytes" in error["message"]

        def endless() -> Iterator[bytes]:  # no Content-Length: it has to be counted
            for _ in range(64):
                yield b"x" * (1 << 15)

        refusal(client.post(COMPLETIONS, content=endless()), 413)


def test_unknown_fields_are_ignored(server: RunningServer) -> None:
    body = {"messages": ASK, "store": False, "metadata": {"a": "b"}, "x_of_the_future": [1]}
    assert server.post(CHAT, body).status_code == 200


def test_a_compressed_body_is_said_to_be_one(server: RunningServer) -> None:
    body = json.dumps({"messages": ASK}).encode()
    with server.client() as client:
        headers = {"content-encoding": "gzip"}
        error = refusal(client.post(CHAT, content=gzip.compress(body), headers=headers), 400)
        assert error["message"].startswith("The body is compressed (Content-Encoding: gzip)")
        assert client.post(CHAT, content=body, headers={"content-encoding": "Identity"}).status_code == 200


def test_half_a_body(server: RunningServer) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + b'{"messages": ')  # and leaves
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(20)
        connection.sendall(head + b'{"messages": ')  # and waits
        answer = connection.recv(65536)
    assert b" 408 " in answer.split(b"\r\n")[0]


def test_a_thousand_garbage_bodies(server: RunningServer) -> None:
    """Bytes at random, JSON at random, and good bodies with something broken in them."""
    choose = random.Random(7)
    good = [
        {"messages": ASK, "tools": [WEATHER_TOOL], "tool_choice": "auto", "max_tokens": 3, "stop": ["x"], "n": 1},
        {"prompt": [[1, 2], [3]], "max_tokens": 3, "logprobs": 1, "echo": True, "logit_bias": {"5": 1}},
    ]
    statuses = set()
    with server.client() as client:
        for turn in range(1000):
            which = choose.randrange(2)
            if turn % 4 == 0:
                body = choose.randbytes(choose.randrange(60))
            elif turn % 4 == 1:
                body = json.dumps(random_json(choose, 3)).encode()
            elif turn % 4 == 2:
                changed = dict(good[which])
                changed[choose.choice([*changed, "temperature", "seed", "stream_options"])] = random_json(choose, 2)
                body = json.dumps(changed).encode()
            else:
                text = bytearray(json.dumps(good[which]).encode())
                for _ in range(choose.randrange(1, 4)):
                    text[choose.randrange(len(text))] = choose.randrange(256)
                body = bytes(text)
            response = client.post((CHAT, COMPLETIONS)[which], content=body)
            statuses.add(response.status_code)
            assert response.status_code in (200, 400, 404), (body, response.text)
            if response.status_code != 200:
                refusal(response, response.status_code)
    assert {200, 400} <= statuses


def random_json(choose: random.Random, depth: int) -> Any:
    kind = choose.randrange(8 if depth else 6)
    if kind == 6:
        return [random_json(choose, depth - 1) for _ in range(choose.randrange(4))]
    if kind == 7:
        names = ("role", "content", "type", "function", "name", "messages", "prompt", "max_tokens", "é")
        return {choose.choice(names): random_json(choose, depth - 1) for _ in range(choose.randrange(4))}
    return (None, True, choose.randrange(-9, 10**6), choose.random() * 10**9, "user", "\x00é🙂")[kind]


def test_a_stream_that_fails_says_so_and_ends(scripted: Scripted) -> None:
    with scripted("one two three", engine={"fail_after": 2}) as (server, _):
        for path, body in ((CHAT, {"messages": ASK}), (COMPLETIONS, {"prompt": "x"})):
            events = server.chunks(path, body)
            assert "[DONE]" not in events
            error = json.loads(events[-1])["error"]
            assert (error["code"], error["type"]) == (500, "InternalServerError")
            assert "NaN" in error["message"]
            assert "choices" in json.loads(events[-2])
            assert "NaN" in refusal(server.post(path, body), 500)["message"]


def test_a_slow_reader_holds_up_nobody(scripted: Scripted) -> None:
    with scripted([281] * 3000) as (server, _):
        body = json.dumps({"prompt": "x", "max_tokens": 3000, "stream": True}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", server.port))
            slow.sendall(head + body)
            received = slow.recv(100)
            for _ in range(3):  # those who had to wait for it would give up
                assert server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 5}).status_code == 200
            while not received.endswith(b"0\r\n\r\n"):
                part = slow.recv(1 << 16)
                assert part, "the stream ended early"
                received += part
    assert received.count(b"data: ") == 3001
