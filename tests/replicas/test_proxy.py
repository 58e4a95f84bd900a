"""The proxy over real HTTP: what passes through, and what happens when replicas fail."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from facet.router import RouteKey
from tests.replicas.conftest import proxied
from tests.server.conftest import Scripted
from tests.server.running import wait_until
from tests.server.test_draining import check_told, stop_while_asked

CHAT = "/v1/chat/completions"
QUESTION = {"messages": [{"role": "user", "content": "hello " * 60}], "max_tokens": 6}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BEGUN = HEAD + b"6\r\ndata: \r\n"


def test_everything_passes_through_unchanged(scripted: Scripted) -> None:
    requests: list[tuple[str, str, Any]] = [
        ("POST", CHAT, QUESTION),
        ("POST", CHAT, {**QUESTION, "stream": True}),
        ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3}),
        ("POST", "/v1/messages", {**QUESTION, "stream": True}),
        ("POST", "/api/chat", QUESTION),
        ("POST", CHAT, {"messages": "no"}),
        ("POST", "/tokenize", {"prompt": "hello"}),
        ("GET", "/v1/models", None),
        ("GET", "/openapi.json", None),
        ("GET", "/nowhere?a=1", None),
        ("DELETE", "/v1/models", None),
        ("HEAD", "/v1/models", None),
    ]
    varying = {"id", "created", "created_at", "date", "total_duration", "load_duration", "prompt_eval_duration",
               "eval_duration"}  # fmt: skip

    def ask(url: str, method: str, path: str, body: Any) -> tuple[Any, ...]:
        response = httpx.request(method, url + path, json=body, headers={"x-request-id": "mine", "origin": "http://a"})
        lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
        values = [json.loads(line) if line.startswith("{") else line for line in lines]
        headers = {name: value for name, value in response.headers.items() if name not in ("date", "content-length")}
        return response.status_code, headers, json.dumps(without(values), sort_keys=True)

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(part) for name, part in value.items() if name not in varying}
        return [without(part) for part in value] if isinstance(value, list) else value

    with scripted("Good day to you.") as (replica, _), proxied(replica.port) as (proxy, _):
        for method, path, body in requests:
            assert ask(proxy.url, method, path, body) == ask(replica.url, method, path, body), path


GONE, BUSY = None, b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "answers",
    [
        (GONE, GONE, b"", BUSY, b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{", BUSY),
        (HEAD, BUSY, GONE, b"no HTTP at all", GONE, GONE),
    ],
)
def test_a_request_without_an_answer_goes_elsewhere(
    scripted: Scripted, misbehaving: Callable[[bytes | None], int], answers: Sequence[bytes | None]
) -> None:
    ports = [misbehaving(answer) for answer in answers]
    with scripted("Here I am.") as (replica, engine), proxied(*ports, replica.port) as (proxy, replicas):
        for num_requests, stream in ((1, False), (2, True)):
            replicas.router.begin(RouteKey(), "6")  # so that all others are tried before it
            response = proxy.post(CHAT, {**QUESTION, "stream": stream, "cache_salt": str(num_requests)})
            assert response.status_code == 200, response.text
            assert len(engine.submitted) == num_requests
            assert f"facet:router_retries_total {6 * num_requests}.0" in proxy.get("/metrics").text


def test_a_request_that_ends_replicas_does_not_end_all_of_them(
    scripted: Scripted, misbehaving: Callable[[bytes | None], int]
) -> None:
    ports = [misbehaving(b"") for _ in range(3)]
    with scripted("Here I am.") as (replica, engine), proxied(*ports, replica.port) as (proxy, replicas):
        replicas.router.begin(RouteKey(), "3")  # so that all others are tried before it
        response = proxy.post(CHAT, QUESTION)
        assert response.status_code == 500
        assert "3 replicas ended while they had this request" in response.json()["error"]["message"]
        assert not engine.submitted


def test_without_a_replica_that_takes_it_a_request_is_refused(misbehaving: Callable[[bytes | None], int]) -> None:
    with proxied(misbehaving(None), misbehaving(b"")) as (proxy, _):
        response = proxy.post(CHAT, QUESTION)
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert response.json()["error"]["type"] == "ServiceUnavailableError"
        assert proxy.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "end"),
    [
        (CHAT, 'data: {"error":{"message":"The replica that was answering has ended. Ask again."'),
        ("/v1/messages", 'event: error\ndata: {"type":"error","error":{"type":"api_error"'),
        ("/api/chat", '{"error":"The replica that was answering has ended. Ask again."}\n'),
    ],
)
def test_a_stream_that_breaks_off_ends_with_an_error(
    misbehaving: Callable[[bytes | None], int], path: str, end: str
) -> None:
    with proxied(misbehaving(BEGUN)) as (proxy, _):
        response = proxy.post(path, {**QUESTION, "stream": True})
        assert response.status_code == 200
        assert end in response.text
        assert "facet:router_broken_streams_total 1.0" in proxy.get("/metrics").text


def test_a_client_that_leaves_ends_its_request_in_the_replica(scripted: Scripted) -> None:
    slowly = scripted([300] * 4000, engine={"seconds_per_turn": 0.01})
    with slowly as (replica, engine), proxied(replica.port) as (proxy, replicas):
        with (
            proxy.client() as client,
            client.stream("POST", CHAT, json={**QUESTION, "max_tokens": 3000, "stream": True}) as response,
        ):
            next(response.iter_lines())
        wait_until(lambda: bool(engine.cancelled))
        engine.gate.clear()
        with pytest.raises(httpx.ReadTimeout), proxy.client() as client:
            client.post(CHAT, json=QUESTION, timeout=0.2)
        wait_until(lambda: len(engine.cancelled) == 2)
        wait_until(lambda: replicas.router.num_running("0") == 0)
        engine.gate.set()


def test_a_draining_replica_finishes_and_gets_nothing_new(scripted: Scripted) -> None:
    with (
        scripted("One.") as (first, one),
        scripted("Two.") as (second, two),
        proxied(first.port, second.port) as (
            proxy,
            replicas,
        ),
    ):
        for _ in range(4):
            assert proxy.post(CHAT, QUESTION).json()["choices"][0]["message"]["content"] == "One."
        replicas.router.drain("0")
        for _ in range(3):
            assert proxy.post(CHAT, QUESTION).json()["choices"][0]["message"]["content"] == "Two."
        replicas.router.drain("1")
        assert proxy.get("/health").status_code == 503
        assert (len(one.submitted), len(two.submitted)) == (4, 3)


def test_stored_responses_are_found_where_they_were_made(scripted: Scripted) -> None:
    with (
        scripted("One.") as (first, _),
        scripted("Two.") as (second, _),
        proxied(first.port, second.port) as (proxy, _),
    ):
        made = [
            proxy.post("/v1/responses", {"input": f"{number} question " * 40}, headers={"x-session-id": str(number)})
            for number in range(6)
        ]
        assert {response.json()["output"][0]["content"][0]["text"] for response in made} == {"One.", "Two."}
        for response in made:
            found = proxy.get(f"/v1/responses/{response.json()['id']}")
            assert found.json()["output"] == response.json()["output"]
            body = {"input": "and then?", "previous_response_id": response.json()["id"]}
            assert proxy.post("/v1/responses", body).status_code == 200


def test_all_replicas_report_at_one_place(scripted: Scripted) -> None:
    key = ("k",)
    with (
        scripted("One.", api_key=key) as (first, one),
        scripted("Two.", api_key=key) as (second, two),
        proxied(first.port, second.port, api_key=key) as (proxy, _),
    ):
        header = {"authorization": "Bearer k"}
        assert proxy.post(CHAT, QUESTION).status_code == 401
        assert proxy.post(CHAT, QUESTION, headers=header).status_code == 200
        text = proxy.get("/metrics").text
        for name in ("0", "1"):
            assert f'vllm:num_requests_running{{model_name="tiny",engine="{name}"}} 0.0' in text
            assert f'facet:replica_ready{{engine="{name}"}} 1.0' in text
        assert text.count("# TYPE vllm:num_requests_running gauge") == 1
        assert proxy.get("/load").json() == {"server_load": 0}
        live = proxy.get("/engine/live", headers=header).json()
        assert live["work"]["num_steps"] == 14
        assert live["arena"]["num_pages"] == 20 == sum(len(kind["cells"]) for kind in live["arena"]["kinds"])
        assert proxy.post("/reset_prefix_cache", None, headers=header).status_code == 200
        assert (one.num_resets, two.num_resets) == (1, 1)
        page = proxy.get("/")
        assert "<html" in page.text
        assert proxy.get("/ping").status_code == 200


def test_limits_are_those_of_the_server(scripted: Scripted) -> None:
    with scripted("One.") as (replica, engine), proxied(replica.port, max_request_bytes=100) as (proxy, _):
        assert proxy.post(CHAT, QUESTION).status_code == 413
        assert not engine.submitted


@pytest.mark.parametrize("stream", [False, True])
def test_a_proxy_that_stops_tells_those_it_leaves(scripted: Scripted, stream: bool) -> None:
    slowly = scripted([281] * 4000, engine={"seconds_per_turn": 0.01})
    with slowly as (replica, engine), proxied(replica.port) as (proxy, _):
        responses = stop_while_asked(proxy, lambda count: len(engine.submitted) == count, stream=stream)
        check_told(responses, stream=stream)
        wait_until(lambda: len(engine.cancelled) == len(responses))
