"""/v1/chat/completions with chosen replies: content, thoughts and calls, whole and in parts."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from facet.tokens import Tokenizer
from tests.chat.conversations import WEATHER_TOOL
from tests.late_imports import LateImport
from tests.server.conftest import END, Scripted
from tests.server.running import NO_CERTIFICATES, RunningServer

if TYPE_CHECKING:
    import openai
else:
    openai = LateImport("openai")

ASK = [{"role": "user", "content": "Weather in Paris?"}]
CALL = '<|tool_call>call:get_weather{city:<|"|>Paris "light"<|"|>,days:[1,2.50,null]}<tool_call|>'
ARGUMENTS = {"city": 'Paris "light"', "days": [1, 2.5, None]}
THOUGHT = "<|channel>thought\nThe wind is light.\n<channel|>"


def ask(server: RunningServer, **body: Any) -> dict[str, Any]:
    response = server.post("/v1/chat/completions", {"model": "tiny", "messages": ASK, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def stream(server: RunningServer, **body: Any) -> list[dict[str, Any]]:
    *events, done = server.chunks("/v1/chat/completions", {"model": "tiny", "messages": ASK, **body})
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def put_together(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """A message from the deltas of a stream, as clients make it."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            for name in ("content", "reasoning", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["tool_calls"]):
                    assert call["type"] == "function"
                    message["tool_calls"].append({"id": call["id"], "type": "function", "function": {"name": call["function"]["name"], "arguments": ""}})  # fmt: skip  # noqa: E501
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"].get("arguments", "")
            message["finish_reason"] = choice["finish_reason"]
    return message


def test_plain_content(scripted: Scripted, tokenizer: Tokenizer) -> None:
    with scripted("one two three") as (server, engine):
        answer = ask(server)
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert choice["message"] == {
        "role": "assistant",
        "content": "one two three",
        "reasoning": None,
        "reasoning_content": None,
        "tool_calls": [],
        "refusal": None,
    }
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    prompt = "<bos><|turn>user\nWeather in Paris?<turn|>\n<|turn>model\n"
    assert tokenizer.decode(engine.submitted[0].prompt_token_ids, skip_special_tokens=False) == prompt
    assert engine.submitted[0].sampling.max_tokens is None


def test_a_stream_has_the_role_first_and_the_reason_last(scripted: Scripted) -> None:
    with scripted("one two three") as (server, _):
        chunks = stream(server, stream_options={"include_usage": True})
        usage = ask(server)["usage"]
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert put_together(chunks)["content"] == "one two three"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], usage)
    assert not any("usage" in chunk for chunk in chunks[:-1])


def test_usage_with_every_chunk(scripted: Scripted) -> None:
    with scripted("one two three") as (server, _):
        chunks = stream(server, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize("tools", [None, [WEATHER_TOOL]])
def test_thoughts_go_under_both_names(scripted: Scripted, tools: Any) -> None:
    with scripted(THOUGHT + "It is clear.") as (server, _):
        message = ask(server, tools=tools)["choices"][0]["message"]
        streamed = put_together(stream(server, tools=tools))
        without = ask(server, include_reasoning=False)["choices"][0]["message"]
    for each in (message, streamed):
        assert each["reasoning"] == each["reasoning_content"] == "The wind is light."
        assert each["content"] == "It is clear."
    assert (without["reasoning"], without["content"]) == (None, "It is clear.")


def test_tool_calls(scripted: Scripted) -> None:
    with scripted(THOUGHT + "I look." + CALL + CALL.replace("Paris", "Rome")) as (server, engine):
        choice = ask(server, tools=[WEATHER_TOOL])["choices"][0]
        chunks = stream(server, tools=[WEATHER_TOOL])
    streamed = put_together(chunks)
    assert (choice["finish_reason"], streamed["finish_reason"]) == ("tool_calls", "tool_calls")
    for message in (choice["message"], streamed):
        calls = message["tool_calls"]
        assert [call["function"]["name"] for call in calls] == ["get_weather"] * 2
        assert json.loads(calls[0]["function"]["arguments"]) == ARGUMENTS
        assert json.loads(calls[1]["function"]["arguments"])["city"] == 'Rome "light"'
        assert len({call["id"] for call in calls}) == 2
        assert message["content"] == "I look."
        assert message["reasoning"] == "The wind is light."
    assert '"name": "get_weather"' in decode(engine)
    assert engine.submitted[0].grammar is not None
    assert engine.submitted[0].grammar.kind == "tool_calls"


def decode(engine: Any) -> str:
    from tests.tokens.gemma_like import build_gemma_like

    return str(build_gemma_like().decode(engine.submitted[0].prompt_token_ids, skip_special_tokens=False))


def test_a_call_alone_has_no_content(scripted: Scripted) -> None:
    with scripted(CALL) as (server, _):
        message = ask(server, tools=[WEATHER_TOOL])["choices"][0]["message"]
    assert message["content"] is None


def test_a_call_cut_off_by_length_is_no_call_to_carry_out(scripted: Scripted) -> None:
    with scripted(CALL) as (server, _):
        choice = ask(server, tools=[WEATHER_TOOL], max_tokens=12)["choices"][0]
    assert choice["finish_reason"] == "length"


def test_without_tools_nothing_is_a_call(scripted: Scripted) -> None:
    with scripted(CALL) as (server, engine):
        for body in ({}, {"tools": [WEATHER_TOOL], "tool_choice": "none"}):
            choice = ask(server, **body)["choices"][0]
            assert choice["message"]["tool_calls"] == []
            assert "get_weather" in choice["message"]["content"]
            assert choice["finish_reason"] == "stop"
    assert all(request.grammar is None for request in engine.submitted)


def test_one_call_at_a_time(scripted: Scripted) -> None:
    with scripted(CALL + CALL, engine={"seconds_per_turn": 0.002}) as (server, _):
        choice = ask(server, tools=[WEATHER_TOOL], parallel_tool_calls=False)["choices"][0]
        streamed = put_together(stream(server, tools=[WEATHER_TOOL], parallel_tool_calls=False))
    assert len(choice["message"]["tool_calls"]) == len(streamed["tool_calls"]) == 1
    assert choice["finish_reason"] == streamed["finish_reason"] == "tool_calls"


def test_stop_strings_apply_to_content(scripted: Scripted) -> None:
    with scripted(THOUGHT + "one two three four five", engine={"seconds_per_turn": 0.002}) as (server, engine):
        choice = ask(server, stop=["e fo"])["choices"][0]
        streamed = put_together(stream(server, stop="e fo"))
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (
        "one two thre",
        "stop",
        "e fo",
    )
    assert streamed["content"] == "one two thre"
    assert len(engine.cancelled) == 2


def test_several_answers(scripted: Scripted) -> None:
    with scripted("one two") as (server, engine):
        answer = ask(server, n=3, seed=1)
        chunks = stream(server, n=3, seed=1)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["one two"] * 3
    assert [put_together(chunks, index)["content"] for index in range(3)] == ["one two"] * 3
    assert [choice["delta"].get("role") for chunk in chunks[:3] for choice in chunk["choices"]] == ["assistant"] * 3
    assert answer["usage"]["completion_tokens"] == 3 * len(engine.script(engine.submitted[0]))


def test_log_probabilities(scripted: Scripted, tokenizer: Tokenizer) -> None:
    with scripted("café 🙂") as (server, _):
        whole = ask(server, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
        chunks = stream(server, logprobs=True, top_logprobs=2)
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == whole
    assert [len(entry["top_logprobs"]) for entry in whole] == [2] * len(whole)
    text = bytes(byte for entry in whole[:-1] for byte in entry["bytes"]).decode()
    assert text == "café 🙂"
    assert whole[-1]["token"] == "<turn|>"


def test_token_ids_come_back(scripted: Scripted, tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("one two"), END]
    with scripted("one two") as (server, engine):
        answer = ask(server, return_token_ids=True)
        chunks = stream(server, return_token_ids=True)
        unasked = stream(server)
    assert answer["choices"][0]["token_ids"] == ids
    assert not any("token_ids" in choice for chunk in unasked for choice in chunk["choices"])
    assert answer["prompt_token_ids"] == chunks[0]["prompt_token_ids"] == list(engine.submitted[0].prompt_token_ids)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [token for choice in choices for token in choice.get("token_ids") or []] == ids
    assert not any("token_ids" in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("body", "is_on"),
    [
        ({}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "none"}, False),
    ],
    ids=str,
)
def test_thinking_is_switched_on(scripted: Scripted, body: dict[str, Any], is_on: bool) -> None:
    with scripted("one") as (server, engine):
        ask(server, **body)
    assert ("<|think|>" in decode(engine)) is is_on


def test_default_template_variables(scripted: Scripted) -> None:
    with scripted("one", model={"template_variables": {"enable_thinking": True}}) as (server, engine):
        ask(server)
    assert "<|think|>" in decode(engine)


def test_roles_and_parts(scripted: Scripted) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "clear"},
    ]
    with scripted("one") as (server, engine):
        ask(server, messages=messages, add_generation_prompt=False)
    assert decode(engine) == (
        "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\none two<turn|>\n"
        "<|turn>assistant\n<|tool_call>get_weather<tool_call|><turn|>\n<|turn>tool\nclear<turn|>\n"
    )


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, "json_object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
            "json_schema",
        ),
        ({"structured_outputs": {"json": {"type": "object"}}}, "json_schema"),
        ({"structured_outputs": {"json_object": True}}, "json_object"),
        ({"structured_outputs": {"regex": "a+"}}, "regex"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice"),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "ebnf"),
        ({"tools": [WEATHER_TOOL], "tool_choice": "required"}, "tool_calls"),
        (
            {"tools": [WEATHER_TOOL], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
            "tool_calls",
        ),
    ],
    ids=str,
)
def test_constraints_go_with_the_request(scripted: Scripted, body: dict[str, Any], kind: str | None) -> None:
    with scripted("one") as (server, engine):
        ask(server, **body)
        ask(server, **body, reasoning_effort="high")
    plain, thinking = (request.grammar for request in engine.submitted)
    if kind is None:
        assert plain is None
        return
    assert plain is not None
    assert thinking is not None
    assert plain.kind == kind
    assert thinking.thought is not None


class TestOfficialClient:
    """The client that most programs use, against the same server."""

    @staticmethod
    def client(server: RunningServer) -> "openai.OpenAI":
        return openai.OpenAI(
            base_url=f"{server.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=openai.DefaultHttpxClient(verify=NO_CERTIFICATES),
        )

    def test_chat(self, scripted: Scripted) -> None:
        with scripted(THOUGHT + "I look." + CALL) as (server, _), self.client(server) as client:
            answer = client.chat.completions.create(model="tiny", messages=ASK, tools=[WEATHER_TOOL])  # type: ignore[call-overload]
            call = answer.choices[0].message.tool_calls[0]
            assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", ARGUMENTS)
            assert answer.choices[0].message.reasoning_content == "The wind is light."
            assert answer.usage.prompt_tokens_details.cached_tokens == 4
            fragments, reasons = "", []
            for chunk in client.chat.completions.create(  # type: ignore[call-overload]
                model="tiny", messages=ASK, tools=[WEATHER_TOOL], stream=True, stream_options={"include_usage": True}
            ):
                if chunk.choices:
                    for part in chunk.choices[0].delta.tool_calls or []:
                        fragments += part.function.arguments or ""
                    reasons.append(chunk.choices[0].finish_reason)
            assert json.loads(fragments) == ARGUMENTS
            assert reasons[-1] == "tool_calls"
            assert chunk.usage is not None

    def test_completions_and_models(self, scripted: Scripted) -> None:
        with scripted("one two") as (server, _), self.client(server) as client:
            assert [model.id for model in client.models.list()] == ["tiny"]
            assert client.models.retrieve("tiny").id == "tiny"
            answer = client.completions.create(model="tiny", prompt="x", logprobs=1, extra_body={"top_k": 5})
            assert answer.choices[0].text == "one two"
            parts = client.completions.create(model="tiny", prompt="x", stream=True)
            assert "".join(part.choices[0].text for part in parts) == "one two"

    def test_errors_are_its_own(self, scripted: Scripted) -> None:
        with scripted("one two") as (server, _), self.client(server) as client:
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                client.completions.create(model="other", prompt="x")
            with pytest.raises(openai.BadRequestError, match="temperature"):
                client.completions.create(model="tiny", prompt="x", temperature=-1)

    def test_a_stream_that_fails_raises(self, scripted: Scripted) -> None:
        with scripted("one two three", engine={"fail_after": 2}) as (server, _), self.client(server) as client:
            with pytest.raises(openai.InternalServerError, match="NaN"):
                client.chat.completions.create(model="tiny", messages=ASK)  # type: ignore[call-overload]
            with pytest.raises(openai.APIError, match="NaN"):
                list(client.chat.completions.create(model="tiny", messages=ASK, stream=True))  # type: ignore[call-overload]
