"""Ollama's /api routes: lines, prompts, options and errors, as Ollama's own client sends and reads them."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import ollama
import pytest

from facet.tokens import Tokenizer
from tests.chat.conversations import WEATHER_TOOL
from tests.server.conftest import Scripted
from tests.server.running import NO_CERTIFICATES, RunningServer

ASK = [{"role": "user", "content": "Weather in Paris?"}]
THOUGHT = "<|channel>thought\nThe wind is light.\n<channel|>"
CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'


@pytest.fixture(scope="module")
def talking(scripted: Scripted) -> Iterator[tuple[RunningServer, Any]]:
    """A server whose model thinks, speaks and calls twice."""
    with scripted(THOUGHT + "I look." + CALL + CALL.replace("Paris", "Rome")) as (server, engine):
        yield server, engine


def prompt_of(engine: Any, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(engine.submitted[-1].prompt_token_ids, skip_special_tokens=False)


def chat(server: RunningServer, **body: Any) -> httpx.Response:
    return server.post("/api/chat", {"model": "tiny", "messages": ASK, "stream": False, **body})


def test_a_chat_whole_and_line_by_line(talking: tuple[RunningServer, Any]) -> None:
    server, engine = talking
    with ollama.Client(host=server.url, verify=NO_CERTIFICATES) as client:
        whole = client.chat("tiny", ASK, tools=[WEATHER_TOOL], think=True)
        lines = list(client.chat("tiny:latest", ASK, tools=[WEATHER_TOOL], think=True, stream=True))
        assert whole.message.content == "".join(line.message.content or "" for line in lines) == "I look."
        assert whole.message.thinking == "".join(line.message.thinking or "" for line in lines) == "The wind is light."
        calls = [call for line in lines for call in line.message.tool_calls or ()]
        for found in (whole.message.tool_calls, calls):
            assert found is not None
            assert [(call.function.name, call.function.arguments) for call in found] == [
                ("get_weather", {"city": "Paris"}),
                ("get_weather", {"city": "Rome"}),
            ]
        assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
        for last in (whole, lines[-1]):
            assert (last.model, last.done_reason) == ("tiny", "stop")
            assert last.prompt_eval_count == len(engine.submitted[-1].prompt_token_ids)
            assert last.eval_count == whole.eval_count
            assert last.total_duration is not None
            assert last.prompt_eval_duration is not None
            assert last.eval_duration is not None
            assert last.total_duration >= last.prompt_eval_duration + last.eval_duration - 1


def test_a_stream_is_lines_of_json_and_the_default(talking: tuple[RunningServer, Any]) -> None:
    response = talking[0].post("/api/chat", {"messages": ASK})
    assert response.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert "tool_calls" not in lines[0]["message"]
    assert lines[-1]["done"] is True


def test_generate_with_a_template_or_without(scripted: Scripted, tokenizer: Tokenizer) -> None:
    with (
        scripted(THOUGHT + "one two") as (server, engine),
        ollama.Client(host=server.url, verify=NO_CERTIFICATES) as client,
    ):
        answer = client.generate("tiny", "Go.", system="Be brief.")
        assert (answer.response, answer.thinking) == ("one two", "The wind is light.")
        expected = "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nGo.<turn|>\n<|turn>model\n"
        assert prompt_of(engine, tokenizer) == expected
        raw = client.generate("tiny", "<|turn>user\nGo.", raw=True)
        assert prompt_of(engine, tokenizer) == "<|turn>user\nGo."
        assert raw.response.endswith("one two")
        parts = client.generate("tiny", "<|turn>user\nGo.", raw=True, stream=True)
        assert "".join(part.response for part in parts) == raw.response
        loaded = client.generate("tiny")
        assert (loaded.done, loaded.done_reason, loaded.response) == (True, "load", "")
        assert client.chat("tiny").done_reason == "load"


def test_what_is_empty_is_not_given(talking: tuple[RunningServer, Any]) -> None:
    """Ollama's client in Go sends every string of /api/generate, set or not."""
    server, engine = talking
    asked = {"model": "tiny", "prompt": "a", "stream": False}
    unset = {"suffix": "", "system": "", "template": "", "format": "", "think": "", "context": None, "options": None}
    for path, plain, empty in (
        ("generate", asked, {**unset, "raw": False, "images": None}),
        ("chat", {**asked, "messages": ASK}, {**unset, "tools": None, "logprobs": False, "top_logprobs": 0}),
    ):
        prompts = []
        for body in (plain, {**plain, **empty}):
            response = server.post(f"/api/{path}", body)
            assert response.status_code == 200, response.text
            prompts.append(engine.submitted[-1].prompt_token_ids)
        assert prompts[0] == prompts[1]


def test_a_conversation_is_rendered_like_that_of_a_chat(talking: tuple[RunningServer, Any]) -> None:
    server, engine = talking
    calls = [{"function": {"name": "get_weather", "arguments": {"city": city}}} for city in ("Paris", "Rome")]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a <turn|>"},
        {"role": "assistant", "content": "b", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "rain", "tool_name": "get_weather"},
        {"role": "tool", "content": "sun", "tool_call_id": "of a call that came without one"},
        *ASK,
    ]
    assert chat(server, messages=messages).status_code == 200
    ours = engine.submitted[-1].prompt_token_ids
    numbered = [{"id": f"c{index}", **call} for index, call in enumerate(calls)]
    messages[2:5] = [
        {"role": "assistant", "content": "b", "reasoning": "hm", "tool_calls": numbered},
        {"role": "tool", "content": "rain", "tool_call_id": "c0"},
        {"role": "tool", "content": "sun", "tool_call_id": "c1"},
    ]
    assert server.post("/v1/chat/completions", {"messages": messages}).status_code == 200
    assert ours == engine.submitted[-1].prompt_token_ids


def test_results_are_paired_with_calls_by_id(talking: tuple[RunningServer, Any], tokenizer: Tokenizer) -> None:
    server, engine = talking
    calls = [{"id": name, "function": {"name": "get_weather", "arguments": {}}} for name in "ab"]
    results = [{"role": "tool", "tool_call_id": name, "content": f"result {name}"} for name in "ab"]
    prompts = []
    for sent in (results, results[::-1]):
        assert chat(server, messages=[*ASK, {"role": "assistant", "tool_calls": calls}, *sent]).status_code == 200
        prompts.append(prompt_of(engine, tokenizer))
    assert prompts[0] == prompts[1]
    assert prompts[0].index("result a") < prompts[0].index("result b")


def test_options_reach_the_engine(talking: tuple[RunningServer, Any], tokenizer: Tokenizer) -> None:
    server, engine = talking
    options = {"temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "seed": 3, "stop": ["x"], "num_predict": 9}
    chat(server, options={**options, "repeat_penalty": 1.5, "num_ctx": 2048, "mirostat": 0, "typical_p": 1.0})
    sampling = engine.submitted[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.5, 0.1)
    assert (sampling.stop, sampling.max_tokens, sampling.repetition_penalty) == (("x",), 9, 1.5)
    chat(server, options={"num_predict": -1}, think=True)
    assert engine.submitted[-1].sampling.max_tokens is None
    assert "<|think|>" in prompt_of(engine, tokenizer)
    chat(server, think="high", format="json")
    assert "<|think|>" in prompt_of(engine, tokenizer)
    assert engine.submitted[-1].grammar.field == "response_format"
    chat(server, think=False, format={"type": "object", "properties": {}})
    assert "<|think|>" not in prompt_of(engine, tokenizer)


def test_the_model_is_described(scripted: Scripted) -> None:
    with (
        scripted("one", api_key=("secret",), served_model_name=("a", "b")) as (server, engine),
        ollama.Client(host=server.url, verify=NO_CERTIFICATES, headers={"authorization": "Bearer secret"}) as client,
    ):
        assert [model.model for model in client.list().models] == ["a", "b"]
        shown = client.show("a")
        assert shown.capabilities == ["completion", "tools", "thinking"]
        assert shown.modelinfo is not None
        assert shown.modelinfo["gemma.context_length"] == 4096
        engine.info = msgspec.structs.replace(engine.info, num_weight_bytes=5000, num_gpu_bytes=12_000)
        listed, running = client.list().models, client.ps().models
        assert [(model.size, model.digest) for model in listed] == [(5000, model.digest) for model in running]
        assert [(model.name, model.model) for model in running] == [("a", "a"), ("b", "b")]
        for model in running:
            assert (model.size, model.size_vram, model.context_length) == (5000 + 10 * 1024, 12_000, 4096)
            assert model.details is not None
            assert model.details.format == "safetensors"
            assert model.expires_at is not None
            assert model.expires_at.year > 2200
        key = {"x-api-key": "secret"}
        assert "version" in server.get("/api/version", headers=key).json()
        for path in ("/api/tags", "/api/ps", "/api/version"):
            refused = server.get(path)
            assert (refused.status_code, list(refused.json())) == (401, ["error"])
        for path in ("/api/pull", "/api/delete", "/api/create", "/api/push", "/api/copy"):
            refused = server.post(path, {"model": "a"}, headers=key)
            assert (refused.status_code, list(refused.json())) == (404, ["error"])


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (
            "chat",
            {"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]},
            "messages[0].images cannot be read",
        ),
        ("generate", {"prompt": "a", "images": ["aGk="]}, "text only"),
        ("chat", {"messages": [{"role": "tool", "content": "a"}]}, "no such call is waiting"),
        ("chat", {"messages": [{"role": "king"}]}, "messages[0].role"),
        ("chat", {"messages": ASK, "options": {"mirostat": 2}}, "options.mirostat is not supported"),
        ("chat", {"messages": ASK, "options": {"repeat_penalty": 1.2, "repeat_last_n": 64}}, "repeat_last_n"),
        ("chat", {"messages": ASK, "options": {"num_predict": 0}}, "options.num_predict"),
        ("chat", {"messages": ASK, "format": "xml"}, "format is 'xml'"),
        ("chat", {"messages": ASK, "think": "much"}, "think is 'much'"),
        ("chat", {"messages": ASK, "logprobs": True}, "logprobs is not supported"),
        ("generate", {"prompt": "a", "suffix": "b"}, "suffix is not supported"),
        ("generate", {"prompt": "a", "context": [1]}, "context is not supported"),
        ("generate", {"prompt": "a", "template": "x"}, "template is not supported"),
        ("generate", {"prompt": "a", "raw": True, "system": "b"}, "raw prompt"),
        ("chat", {"messages": 3}, "messages: expected array"),
    ],
)
def test_what_is_wrong_is_said_in_ollamas_shape(
    talking: tuple[RunningServer, Any], path: str, body: dict[str, Any], words: str
) -> None:
    response = talking[0].post(f"/api/{path}", body)
    assert response.status_code == 400, response.text
    error = response.json()
    assert list(error) == ["error"]
    assert words in error["error"]


def test_a_stream_that_fails_says_so(scripted: Scripted) -> None:
    with (
        scripted("one two three", engine={"fail_after": 2}) as (server, _),
        ollama.Client(host=server.url, verify=NO_CERTIFICATES) as client,
    ):
        with pytest.raises(ollama.ResponseError, match="NaN"):
            list(client.chat("tiny", ASK, stream=True))
        with pytest.raises(ollama.ResponseError, match="does not exist"):
            client.chat("other", ASK)
