"""The whole way, with the real engine in its process and a tiny model: HTTP in, HTTP out."""

import asyncio
import json
import logging
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from facet import LLM, SamplingParams
from facet.config import ServerConfig
from facet.server.run import start_app
from tests.late_imports import LateImport
from tests.server.running import RunningServer, running, running_with_engine

if TYPE_CHECKING:
    import openai
else:
    openai = LateImport("openai")

SETTINGS: dict[str, Any] = dict(device="cpu", kv_cache_memory_bytes=64 << 20, max_num_batched_tokens=512)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = [{"role": "user", "content": "one two three"}]
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "skip_special_tokens": False}


@pytest.fixture(scope="module")
def server(model_folder: Path) -> Iterator[RunningServer]:
    config = ServerConfig(
        model=str(model_folder),
        served_model_name=("tiny",),
        disable_log_stats=True,
        debug_poison_freed_blocks=True,
        **SETTINGS,
    )
    with running_with_engine(config) as server:
        yield server


@pytest.fixture(scope="module")
def llm(model_folder: Path) -> Iterator[LLM]:
    llm = LLM(str(model_folder), show_progress=False, **SETTINGS)
    yield llm
    llm.close()


def ask(server: RunningServer, path: str, **body: Any) -> dict[str, Any]:
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_completions_are_what_the_engine_says_offline(server: RunningServer, llm: LLM) -> None:
    texts = ["The weather in Paris", "one two three four", "今日は"]
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, skip_special_tokens=False)
    expected = [result.outputs[0].text for result in llm.generate(texts, sampling, use_tqdm=False)]
    answer = ask(server, COMPLETIONS, prompt=texts, **GREEDY)
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    streamed = [""] * 3
    for event in server.chunks(COMPLETIONS, {"prompt": texts, **GREEDY})[:-1]:
        choice = json.loads(event)["choices"][0]
        streamed[choice["index"]] += choice["text"]
    assert streamed == expected


def test_chat_is_what_the_engine_says_offline(server: RunningServer, llm: LLM) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, skip_special_tokens=False)
    (expected,) = llm.chat(ASK, sampling, use_tqdm=False)
    answer = ask(server, CHAT, messages=ASK, return_token_ids=True, **GREEDY)
    assert answer["prompt_token_ids"] == expected.prompt_token_ids
    assert answer["choices"][0]["token_ids"] == expected.outputs[0].token_ids


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0.7, "seed": 3, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
        {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "seed": 1},
        {"logit_bias": {"300": 100}, "temperature": 0},
        {"bad_words": ["one"], "allowed_token_ids": [300, 301, 302], "seed": 5},
        {"min_tokens": 4, "stop_token_ids": [300], "ignore_eos": True, "seed": 2},
        {"n": 3, "seed": 9},
        {"priority": 5, "cache_salt": "x", "temperature": 0},
    ],
    ids=str,
)
def test_sampling_fields_reach_the_model(server: RunningServer, body: dict[str, Any]) -> None:
    """Twice the same question has the same answer, streamed or not, at both endpoints."""
    for path, prompt in ((COMPLETIONS, {"prompt": "one two"}), (CHAT, {"messages": ASK})):
        asked = {**prompt, "max_tokens": 6, "return_token_ids": True, **body}
        first, second = ([choice["token_ids"] for choice in ask(server, path, **asked)["choices"]] for _ in range(2))
        assert first == second
        if "logit_bias" in body:
            assert set(first[0]) == {300}
        if "allowed_token_ids" in body:
            assert set(first[0]) <= {300, 301, 302}


def test_log_probabilities_and_echo(server: RunningServer) -> None:
    answer = ask(server, COMPLETIONS, prompt="one two three", logprobs=2, echo=True, return_token_ids=True, **GREEDY)
    choice = answer["choices"][0]
    entries = choice["logprobs"]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    assert len(entries["tokens"]) == len(entries["text_offset"]) == len(entries["top_logprobs"]) == len(ids)
    assert entries["token_logprobs"][0] is None
    assert all(value <= 0 for value in entries["token_logprobs"][1:])
    events = server.chunks(COMPLETIONS, {"prompt": "one two three", "logprobs": 2, "echo": True, **GREEDY})[:-1]
    streamed: list[Any] = []
    for event in events:
        streamed += json.loads(event)["choices"][0]["logprobs"]["token_logprobs"]
    assert streamed[1:] == pytest.approx(entries["token_logprobs"][1:], abs=1e-4)
    scored = ask(server, COMPLETIONS, prompt="one two three", logprobs=0, echo=True, max_tokens=0)["choices"][0]
    again = scored["logprobs"]["token_logprobs"]
    assert again[1:] == pytest.approx(entries["token_logprobs"][1 : len(again)], abs=1e-4)


def test_prompt_log_probabilities(server: RunningServer) -> None:
    for path, prompt in ((COMPLETIONS, {"prompt": "one two"}), (CHAT, {"messages": ASK})):
        answer = ask(server, path, prompt_logprobs=1, return_token_ids=True, n=2, seed=1, max_tokens=2, **prompt)
        holders = answer["choices"] if path == COMPLETIONS else [answer]
        for holder in holders:
            ids = holder["prompt_token_ids"]
            positions = holder["prompt_logprobs"]
            assert len(positions) == len(ids)
            assert positions[0] is None
            assert all(str(token) in position for token, position in zip(ids[1:], positions[1:], strict=True))


def test_a_second_question_finds_its_prompt_cached(server: RunningServer) -> None:
    prompt = list(range(20, 220))
    ask(server, COMPLETIONS, prompt=prompt, **GREEDY)
    usage = ask(server, COMPLETIONS, prompt=prompt, **GREEDY)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert server.post("/reset_prefix_cache", {}).status_code == 200
    usage = ask(server, COMPLETIONS, prompt=prompt, **GREEDY)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("body", "numbers"),
    [
        (
            {"prompt": [5] * 5000},
            ("prompt is too long", "5000 tokens", "1 more", "this model's maximum context length is"),
        ),
        ({"prompt": "one", "max_tokens": 10**9}, ("1000000000 more", "this model's maximum context length is")),
        ({"prompt": [1000]}, ("token id 1000", "0 to")),
        ({"prompt": "one", "structured_outputs": {"regex": "(["}}, ("structured_outputs",)),
        (
            {"prompt": "one", "structured_outputs": {"json": {"$ref": "#"}}},
            ("structured_outputs", "never be completed"),
        ),
        ({"prompt": "one", "structured_outputs": {"grammar": "root ::= root"}}, ("its rule root can never",)),
        ({"prompt": "one", "stop_token_ids": [10**6]}, ("stop_token_ids", "1000000")),
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_only_the_engine_can_refuse(
    server: RunningServer, body: dict[str, Any], numbers: tuple[str, ...], stream: bool
) -> None:
    response = server.post(COMPLETIONS, {**body, "stream": stream})
    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    for words in numbers:
        assert words in message


def test_what_the_engine_refuses_is_named_as_it_was_sent(server: RunningServer) -> None:
    for path, body, field in (
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (CHAT, {"messages": ASK, "max_tokens": 10**9}, "max_tokens"),
        (CHAT, {"messages": ASK, "max_completion_tokens": 10**9}, "max_completion_tokens"),
    ):
        error = server.post(path, body).json()["error"]
        assert (error["code"], error["param"]) == (400, field)


def test_metrics_of_the_real_engine(server: RunningServer) -> None:
    ask(server, COMPLETIONS, prompt="one", **GREEDY)
    text = server.get("/metrics").text
    for name in (
        "num_requests_running",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "corrupted_requests_total",
    ):
        assert f"vllm:{name}{{" in text
    values = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line[0] != "#"}
    sizes = {name.split('le="')[1].split('"')[0]: value for name, value in values.items() if "tokens_total_bu" in name}
    labels = '{engine="0",model_name="tiny"}'
    assert sizes["16384.0"] == sizes["+Inf"] == values[f"facet:num_steps_total{labels}"] > sizes["1.0"] > 0
    assert values[f"vllm:iteration_tokens_total_sum{labels}"] == values[f"facet:computed_tokens_total{labels}"]


REGEX_SCAN = {
    "type": "function",
    "function": {
        "name": "regex_scan",
        "description": "Scan text with a regular expression and return every match.",
        "parameters": {
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "The regular expression"},
                "flags": {"type": "string", "enum": ["", "i", "m"]},
            },
            "required": ["pattern"],
        },
    },
}


def long_conversation(number: int) -> dict[str, Any]:
    """Ten thousand characters, another text for each."""
    choose = random.Random(number)
    words = ["the", "weather", "in", "Paris", "is", "clear", "and", "wind", "light", "one", "two", "three"]
    text = ""
    while len(text) < 10_000:
        text += choose.choice(words) + " "
    return {
        "messages": [{"role": "user", "content": text}],
        "tools": [REGEX_SCAN],
        "temperature": 0,
        "max_tokens": 10,
        "ignore_eos": True,
        "return_token_ids": True,
    }


@pytest.mark.parametrize("num_at_once", [5, 64])
def test_answers_in_company_are_the_answers_alone(server: RunningServer, num_at_once: int) -> None:
    """The report's reproduction: one tool, long prompts, many at once, streaming and not."""
    num_different = 5 if num_at_once == 5 else 8  # each several times: solo answers are the slow part
    bodies = [long_conversation(number) for number in range(num_different)]
    alone = [read(server.post(CHAT, body)) for body in bodies]
    server.post("/reset_prefix_cache", {})

    async def all_at_once() -> list[tuple[int, Any]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=240) as client:

            async def one(number: int) -> tuple[int, Any]:
                which = number % num_different
                if number // num_different % 2:
                    return which, read(await client.post(CHAT, json=bodies[which]))
                response = await client.post(CHAT, json={**bodies[which], "stream": True})
                return which, read_stream(response)

            return await asyncio.gather(*map(one, range(num_at_once)))

    for which, answer in asyncio.run(all_at_once()):
        assert answer == alone[which]
        assert set(answer[0]) != {0}, "nothing but padding"


def read(response: httpx.Response) -> tuple[list[int], str, str, list[Any]]:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    return choice["token_ids"], message["content"] or "", message["reasoning"] or "", calls


def read_stream(response: httpx.Response) -> tuple[list[int], str, str, list[Any]]:
    assert response.status_code == 200, response.text
    *events, done = [text.removeprefix("data: ") for text in response.text.split("\n\n") if text]
    assert done == "[DONE]"
    ids: list[int] = []
    content = reasoning = ""
    calls: list[Any] = []
    for event in map(json.loads, events):
        ids += next((choice.get("token_ids", []) for choice in event["choices"]), [])
        delta = event["choices"][0]["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", []):
            if "id" in call:
                calls.append((call["function"]["name"], ""))
            name, arguments = calls[call["index"]]
            calls[call["index"]] = (name, arguments + call["function"].get("arguments", ""))
    return ids, content, reasoning, calls


def test_how_much_memory_the_model_takes(server: RunningServer, model_folder: Path) -> None:
    (listed,), (running,) = (server.get(path).json()["models"] for path in ("/api/tags", "/api/ps"))
    in_files = sum(path.stat().st_size for path in model_folder.glob("*.safetensors"))
    assert in_files / 2 < listed["size"] < in_files * 4  # they may be computed in a wider type than they are stored in
    cache = server.get("/server_info").json()["kv_cache"]
    assert running["size"] == listed["size"] + cache["num_blocks"] * cache["block_bytes"]
    assert running["size_vram"] == 0


def test_a_killed_engine_is_news_for_everybody(model_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = ServerConfig(model=str(model_folder), served_model_name=("tiny",), disable_log_stats=True, **SETTINGS)
    engine, _, app = start_app(config)
    with running(app) as server, server.client() as client:
        body = {"prompt": "one", "max_tokens": 400, "ignore_eos": True, "seed": 1, "stream": True}
        with client.stream("POST", COMPLETIONS, json=body) as response, caplog.at_level(logging.CRITICAL, "facet"):
            lines = response.iter_lines()
            next(lines)
            assert engine.process_id is not None
            os.kill(engine.process_id, signal.SIGKILL)
            *_, last = [text for text in lines if text]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["code"] == 503
        assert "The engine process was killed (signal 9), most likely because memory ran out." in error["message"]
        assert client.get("/health").status_code == 503
        assert client.post(COMPLETIONS, json={"prompt": "one"}).status_code == 503


def test_constrained_answers_keep_to_their_form(server: RunningServer) -> None:
    """At temperature 1 a random model says anything; under a constraint it says what was asked for."""
    sampled = {"temperature": 1, "max_tokens": 200, "messages": ASK}
    for seed in range(3):
        choice = ask(server, CHAT, **sampled, seed=seed, structured_outputs={"choice": ["one", "two"]})["choices"][0]
        assert choice["message"]["content"] in ("one", "two")
        tool = {"tools": [REGEX_SCAN], "tool_choice": "required"}
        choice = ask(server, CHAT, **sampled, seed=seed, **tool)["choices"][0]
        if choice["finish_reason"] == "tool_calls":
            arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
            assert isinstance(arguments["pattern"], str)
            assert arguments.get("flags", "") in ("", "i", "m")
        else:
            assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "name", "num_tokens"),
    [
        ({"min_tokens": 5, "structured_outputs": {"choice": ["a"]}}, "min_tokens", 1),
        ({"allowed_token_ids": [300], "structured_outputs": {"regex": "[0-9]"}}, "allowed_token_ids", 0),
    ],
    ids=str,
)
def test_settings_that_contradict_a_grammar_are_the_clients_mistake(
    server: RunningServer, body: dict[str, Any], name: str, num_tokens: int
) -> None:
    """Clients try again after a 500, and would be told the same."""
    corrupted = 'vllm:corrupted_requests_total{engine="0",model_name="tiny"}'
    before = [line for line in server.get("/metrics").text.splitlines() if line.startswith(corrupted)]
    chat = {"messages": ASK, "max_tokens": 8, "temperature": 0, **body}
    response = server.post(CHAT, chat)
    *_, streamed = server.chunks(CHAT, chat)
    for status, error in ((response.status_code, response.json()["error"]), (400, json.loads(streamed)["error"])):
        assert (status, error["code"], error["type"], error["param"]) == (400, 400, "BadRequestError", name)
        assert error["message"].startswith(f"No token may follow the {num_tokens} that the answer has: {name} and")
    after = [line for line in server.get("/metrics").text.splitlines() if line.startswith(corrupted)]
    assert before == after != []


def test_the_official_client_on_the_real_engine(server: RunningServer, llm: LLM) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        extra = {"ignore_eos": True, "skip_special_tokens": False, "top_k": 5}
        asked: dict[str, Any] = dict(model="tiny", messages=ASK, temperature=0, max_tokens=8, extra_body=extra)
        whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2, seed=3)
        streamed = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
        assert whole.choices[0].message.content == text
        assert whole.choices[0].logprobs is not None
        assert len(whole.choices[0].logprobs.content or ()) == 8
        assert streamed[-1].usage is not None
        assert streamed[-1].usage.completion_tokens == 8

        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, skip_special_tokens=False)
        expected = llm.generate("one two three", params)[0].outputs[0].text
        completion = client.completions.create(
            model="tiny", prompt="one two three", temperature=0, max_tokens=8, logprobs=1, extra_body=extra
        )
        assert [choice.text for choice in completion.choices] == [expected]
        assert [model.id for model in client.models.list()] == ["tiny"]
        with pytest.raises(openai.BadRequestError, match="maximum context length is"):
            client.completions.create(model="tiny", prompt=[5] * 5000)


def test_metrics_tell_the_kinds_of_blocks_apart(server: RunningServer) -> None:
    text = server.get("/metrics").text
    assert 'facet:kv_cache_blocks{engine="0",kind="sliding",model_name="tiny"}' in text
    assert 'kind="global"' in text


def test_metrics_say_where_a_request_spent_its_time(server: RunningServer) -> None:
    ask(server, COMPLETIONS, prompt="one two", **GREEDY)
    text = server.get("/metrics").text
    for name in ("queue", "prefill", "decode", "inference"):
        (line,) = [part for part in text.splitlines() if part.startswith(f"vllm:request_{name}_time_seconds_sum")]
        assert 0 < float(line.split()[-1]) < 1000
