"""What operators rely on: keys, ids, health, metrics, limits, leaving clients, and a clean end."""

import asyncio
import json
import logging
import threading
from typing import Any

import httpx
import pytest

from facet.engine.messages import EngineInfo, Refused, Stats
from facet.server.engine_bridge import Counters, EngineBridge
from facet.server.stats_log import line, log_stats
from facet.version import __version__
from tests.server.conftest import Scripted
from tests.server.running import RunningServer, wait_until
from tests.server.scripted_engine import ScriptedEngine
from tests.server.test_metrics import metrics_of

ASK = {"messages": [{"role": "user", "content": "one"}]}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def test_models_version_and_documents(scripted: Scripted) -> None:
    with scripted("one", served_model_name=("first", "second/x")) as (server, _):
        cards = server.get("/v1/models").json()["data"]
        assert [(card["id"], card["object"], card["max_model_len"]) for card in cards] == [
            ("first", "model", 4096),
            ("second/x", "model", 4096),
        ]
        assert server.get("/v1/models/second/x").json()["id"] == "second/x"
        for name in ("first", "second/x"):
            assert server.post(CHAT, {**ASK, "model": name}).json()["model"] == "first"
        assert server.get("/version").json() == {"version": __version__}
        document = server.get("/openapi.json").json()
        schema = document["components"]["schemas"]["ChatRequest"]["properties"]
        assert {"messages", "tools", "min_p", "structured_outputs"} <= set(schema)
        assert {"/v1/completions", "/tokenize", "/health"} <= set(document["paths"])
        assert "openapi.json" in server.get("/docs").text


def test_without_documents(scripted: Scripted) -> None:
    with scripted("one", disable_fastapi_docs=True) as (server, _):
        for path in ("/docs", "/openapi.json"):
            refused = server.get(path)
            assert refused.status_code == 404
            assert refused.json()["error"]["message"] == f"There is no {path} on this server."


def test_tokenize_and_back(scripted: Scripted) -> None:
    with scripted("one") as (server, _):
        answer = server.post("/tokenize", {"prompt": "one café", "return_token_strs": True}).json()
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
        assert answer["max_model_len"] == 4096
        assert server.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "one café"}
        chat = server.post("/tokenize", ASK).json()["tokens"]
        text = server.post("/detokenize", {"tokens": chat}).json()["prompt"]
        assert text == "<bos><|turn>user\none<turn|>\n<|turn>model\n"
        nulls = dict.fromkeys(("add_generation_prompt", "split_special_tokens", "return_token_strs"))
        assert server.post("/tokenize", {**ASK, **nulls}).json()["tokens"] == chat


def test_keys(scripted: Scripted) -> None:
    with scripted("one", api_key=("right", "also right")) as (server, _):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "right"}, {"authorization": "Bearer"}):
            for path in ("/v1/models", "/v1/nothing"):
                refused = server.get(path, headers=headers)
                assert refused.status_code == 401
                assert refused.json()["error"]["type"] == "AuthenticationError"
                assert refused.headers["www-authenticate"] == "Bearer"
                assert refused.headers["x-request-id"]
        for key in ("right", "also right"):
            assert server.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert server.get("/health").status_code == server.get("/metrics").status_code == 200


def test_a_key_with_letters_of_any_language(scripted: Scripted) -> None:
    with scripted("one", api_key=("schlüssel-à",)) as (server, _):
        right, wrong = ({"authorization": f"Bearer {key}".encode()} for key in ("schlüssel-à", "schlüssel-a"))
        assert server.get("/v1/models", headers=right).status_code == 200
        assert server.get("/v1/models", headers={"x-api-key": "schlüssel-à".encode()}).status_code == 200
        assert server.get("/v1/models", headers=wrong).status_code == 401


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_ids_in_bodies_cannot_forge_lines_of_the_log(scripted: Scripted, path: str) -> None:
    with scripted("one") as (server, _):
        ask = {**ASK, "prompt": "one"}
        for wanted in ("a\nb", "a" * 129, "é"):
            refused = server.post(path, {**ask, "request_id": wanted})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "request_id"
        assert server.post(path, {**ask, "request_id": "mine:1"}).json()["id"].endswith("-mine:1")
        assert server.post(path, {**ask, "request_id": ""}).status_code == 200


def test_request_ids(scripted: Scripted) -> None:
    with scripted("one") as (server, engine):
        answer = server.post(CHAT, ASK, headers={"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"] == answer.headers["request-id"] == "mine-1"
        assert answer.json()["id"] == "chatcmpl-mine-1"
        server.post(CHAT, ASK, headers={"x-request-id": "mine-1"})
        made_up = server.post(CHAT, ASK, headers={"x-request-id": "not usable"}).headers["x-request-id"]
        assert made_up not in ("", "not usable")
    assert len({request.request_id for request in engine.submitted}) == 3


def test_errors_below_a_prefix_are_those_of_the_path(scripted: Scripted) -> None:
    with scripted("one") as (server, _):
        server.server.config.root_path = "/facet"  # as --root-path does; the proxy in front has taken it off
        assert server.get("/v1/models").status_code == 200
        error = server.get("/v1/messages").json()
        assert error["type"] == "error", "Anthropic's form"
        assert error["error"]["message"].startswith("/v1/messages does not support GET")
        meant = server.post("/chat/completions", ASK).json()["error"]["message"]
        assert meant.startswith("There is no /chat/completions on this server. Did you mean /v1/chat/completions?")


def test_cors(scripted: Scripted) -> None:
    with scripted("one", allowed_origins=("http://here",)) as (server, _):
        asked = {"origin": "http://here", "access-control-request-method": "POST"}
        with server.client() as client:
            allowed = client.options(CHAT, headers=asked)
            refused = client.options(CHAT, headers={**asked, "origin": "http://there"})
    assert allowed.headers["access-control-allow-origin"] == "http://here"
    assert refused.status_code == 400


def test_the_ten_second_line() -> None:
    stats = Stats(2, 3, 0, 9, 0, 0, 0, 200, 50, 0, 1000, 250)
    text = line(stats, Counters(700, 90), Counters(200, 40), 10.0)
    assert text == (
        "Engine 000: Avg prompt throughput: 50.0 tokens/s, Avg generation throughput: 5.0 tokens/s, Running: 2 reqs, "
        "Waiting: 3 reqs, GPU KV cache usage: 25.0%, Prefix cache hit rate: 25.0%"
    )


def test_the_line_is_written_while_something_happens(caplog: pytest.LogCaptureFixture) -> None:
    """Once for what happened, once with zeros, and then no more."""

    async def watch() -> None:
        engine = ScriptedEngine(lambda request: [], EngineInfo(10, (), 10, "", ()))
        bridge = EngineBridge(engine, max_pending=1)
        bridge.start()
        bridge.counters.num_generation_tokens = 50
        task = asyncio.create_task(log_stats(bridge, 0.05))
        while len(caplog.records) < 2:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        task.cancel()
        await bridge.stop()

    with caplog.at_level(logging.INFO, "facet.server.stats_log"):
        asyncio.run(watch())
    lines = [record.message for record in caplog.records if record.name == "facet.server.stats_log"]
    assert len(lines) == 2
    assert "generation throughput: 0.0" not in lines[0]
    assert "generation throughput: 0.0" in lines[1]


def test_resetting_the_prefix_cache(scripted: Scripted) -> None:
    with scripted("one") as (server, engine):
        assert server.post("/reset_prefix_cache", {}).status_code == 200
    assert engine.num_resets == 1


class InBackground(threading.Thread):
    """A request that is under way while the test goes on."""

    def __init__(self, server: RunningServer, path: str, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._ask = lambda: server.post(path, body)
        self.response: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.response = self._ask()

    def answer(self) -> httpx.Response:
        self.join(timeout=20)
        assert self.response is not None
        return self.response


def test_a_full_queue_is_said_with_a_time_to_come_back(scripted: Scripted) -> None:
    with scripted("one two", max_num_seqs=1, max_waiting_requests=2) as (server, engine):
        engine.gate.clear()
        waiting = [InBackground(server, CHAT, ASK) for _ in range(3)]
        wait_until(lambda: len(engine.submitted) == 3)
        assert server.get("/load").json() == {"server_load": 3}
        refused = server.post(CHAT, ASK)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert "3 requests" in refused.json()["error"]["message"]
        engine.gate.set()
        assert [asked.answer().status_code for asked in waiting] == [200] * 3
        assert server.post(CHAT, ASK).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_read", [0, 3])
def test_a_client_that_leaves_frees_the_engine(scripted: Scripted, stream: bool, num_read: int) -> None:
    if num_read and not stream:
        return
    with scripted([281] * 4000, engine={"seconds_per_turn": 0.005}) as (server, engine):
        if not num_read:
            engine.gate.clear()  # it leaves before a first token
        body = {"prompt": "x", "max_tokens": 4000, "n": 2, "seed": 1, "stream": stream}
        with server.client() as client:
            if stream and num_read:
                with client.stream("POST", COMPLETIONS, json=body) as response:
                    lines = response.iter_lines()
                    for _ in range(num_read):
                        next(lines)
            else:
                with pytest.raises(httpx.ReadTimeout):
                    client.post(COMPLETIONS, json=body, timeout=0.3)
        wait_until(lambda: len(engine.cancelled) == 2)
        wait_until(lambda: server.get("/load").json() == {"server_load": 0})
        assert sorted(engine.cancelled) == sorted(request.request_id for request in engine.submitted)
        name = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}'
        assert metrics_of(server)[name] == 2


def test_the_death_of_the_engine_reaches_everybody_at_once(
    scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted([281] * 4000, engine={"seconds_per_turn": 0.005}) as (server, engine):
        assert server.get("/health").status_code == server.get("/ping").status_code == 200
        waiting = [InBackground(server, COMPLETIONS, {"prompt": "x", "max_tokens": 4000}) for _ in range(3)]
        with (
            server.client() as client,
            client.stream("POST", COMPLETIONS, json={"prompt": "x", "max_tokens": 4000, "stream": True}) as response,
        ):
            lines = response.iter_lines()
            next(lines)
            wait_until(lambda: len(engine.submitted) == 4)
            with caplog.at_level(logging.CRITICAL, "facet"):
                engine.die()
                last = [text for text in lines if text][-1]
        for asked in waiting:
            answer = asked.answer()
            assert answer.status_code == 503
            assert "it was told to" in answer.json()["error"]["message"]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == 503
        assert server.get("/health").status_code == server.post(CHAT, ASK).status_code == 503
        assert server.get("/metrics").status_code == 200


def test_a_refusal_by_the_engine_keeps_its_status_in_a_stream(scripted: Scripted) -> None:
    with scripted("one") as (server, engine):
        engine.gate.clear()
        asked = InBackground(server, CHAT, {**ASK, "stream": True})
        wait_until(lambda: len(engine.submitted) == 1)
        engine.refuse(Refused(engine.submitted[0].request_id, "Too long by far.", "max_tokens", False))
        answer = asked.answer()
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "Too long by far.",
        "type": "BadRequestError",
        "param": "max_tokens",
        "code": 400,
    }
