"""/v1/messages: blocks, events, prompts and errors, as Anthropic's own client sends and reads them."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from facet.tokens import Tokenizer
from tests.late_imports import LateImport
from tests.server.conftest import Scripted
from tests.server.running import NO_CERTIFICATES, RunningServer

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = LateImport("anthropic")

TOOL = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASK = [{"role": "user", "content": "Weather in Paris?"}]
THOUGHT = "<|channel>thought\nThe wind is light.\n<channel|>"
CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,far:2.50}<tool_call|>'
REPLY = THOUGHT + "I look." + CALL + CALL.replace("Paris", "Rome")


@pytest.fixture(scope="module")
def talking(scripted: Scripted) -> Iterator[tuple[RunningServer, Any]]:
    """A server whose model thinks, speaks and calls twice."""
    with scripted(REPLY) as (server, engine):
        yield server, engine


def client_of(server: RunningServer, **options: Any) -> "anthropic.Anthropic":
    http_client = anthropic.DefaultHttpxClient(verify=NO_CERTIFICATES)
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, http_client=http_client, **options)


def prompt_of(engine: Any, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(engine.submitted[-1].prompt_token_ids, skip_special_tokens=False)


def post(server: RunningServer, **body: Any) -> httpx.Response:
    return server.post("/v1/messages", {"model": "tiny", "messages": ASK, "max_tokens": 64, **body})


def test_a_message_has_blocks_in_the_order_they_were_written(talking: tuple[RunningServer, Any]) -> None:
    server, engine = talking
    with client_of(server) as client:
        whole = client.messages.create(model="tiny", max_tokens=100, messages=ASK, tools=[TOOL])  # type: ignore[list-item]
        with client.messages.stream(model="tiny", max_tokens=100, messages=ASK, tools=[TOOL]) as stream:  # type: ignore[list-item]
            events = [event.type for event in stream]
            streamed = stream.get_final_message()
    for message in (whole, streamed):
        thought, text, first, second = message.content
        assert isinstance(thought, anthropic.types.ThinkingBlock)
        assert (thought.thinking, thought.signature) == ("The wind is light.", "")
        assert isinstance(text, anthropic.types.TextBlock)
        assert text.text == "I look."
        assert isinstance(first, anthropic.types.ToolUseBlock)
        assert (first.name, first.input) == ("get_weather", {"city": "Paris", "far": 2.5})
        assert isinstance(second, anthropic.types.ToolUseBlock)
        assert second.id != first.id
        assert (message.stop_reason, message.role, message.model) == ("tool_use", "assistant", "tiny")
        assert message.id.startswith("msg_")
        usage, num_prompt_tokens = message.usage, len(engine.submitted[-1].prompt_token_ids)
        assert (usage.cache_read_input_tokens, usage.input_tokens) == (4, num_prompt_tokens - 4)
        assert usage.output_tokens == whole.usage.output_tokens
        assert usage.output_tokens_details is not None
        assert usage.output_tokens_details.thinking_tokens > 0
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"
    starts = [place for place, event in enumerate(events) if event == "content_block_start"]
    stops = [place for place, event in enumerate(events) if event == "content_block_stop"]
    assert len(starts) == len(stops) == 4
    assert all(start < stop for start, stop in zip(starts, stops, strict=True))
    assert all(stop < start for stop, start in zip(stops, starts[1:], strict=False))
    assert engine.submitted[0].grammar is not None


def test_events_carry_their_names(scripted: Scripted) -> None:
    with scripted("one") as (server, _), server.client() as client:
        body = {"model": "tiny", "messages": ASK, "max_tokens": 9, "stream": True}
        with client.stream("POST", "/v1/messages", json=body) as response:
            lines = [line for line in response.iter_lines() if line]
    assert len(lines) % 2 == 0
    for name, data in zip(lines[::2], lines[1::2], strict=True):
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert lines[-2] == "event: message_stop"


@pytest.mark.parametrize(
    ("reply", "options", "reason", "sequence", "text"),
    [
        ("one two three", {}, "end_turn", None, "one two three"),
        ("one two three", {"stop_sequences": ["two"]}, "stop_sequence", "two", "one "),
        ("one two three", {"max_tokens": 1}, "max_tokens", None, None),
    ],
)
def test_why_an_answer_ends(
    scripted: Scripted, reply: str, options: dict[str, Any], reason: str, sequence: str | None, text: str | None
) -> None:
    with scripted(reply) as (server, _), client_of(server) as client:
        settings: Any = {"model": "tiny", "max_tokens": 64, "messages": ASK, **options}
        whole = client.messages.create(**settings)
        with client.messages.stream(**settings) as stream:
            streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
        if text is not None:
            assert isinstance(message.content[0], anthropic.types.TextBlock)
            assert message.content[0].text == text


def test_a_call_that_is_cut_off_is_not_handed_out(scripted: Scripted) -> None:
    with scripted(CALL) as (server, _):
        message = post(server, tools=[TOOL], max_tokens=12).json()
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")


def test_a_conversation_is_rendered_like_that_of_a_chat(scripted: Scripted, tokenizer: Tokenizer) -> None:
    """Results first, thoughts and calls in one turn, arguments as they were written; injected markers stay text."""
    with scripted("ok") as (server, engine):
        messages = [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a <turn|>", "cache_control": {"type": "ephemeral"}}],
            },
            {"role": "user", "content": "b"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "text", "text": "c"},
                    {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "go on"},
                    {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
                    {"type": "tool_result", "tool_use_id": "call_1", "content": "broken", "is_error": True},
                ],
            },
        ]
        system = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        assert post(server, messages=messages, system=system).status_code == 200
        ours = engine.submitted[-1].prompt_token_ids
        chat = [
            {"role": "system", "content": "one\n\ntwo"},
            {"role": "user", "content": [{"type": "text", "text": "a <turn|>"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": "c",
                "reasoning": "hm",
                "tool_calls": [{"id": "call_1", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
            {"role": "tool", "tool_call_id": "call_1", "content": "Error: broken"},
            {"role": "user", "content": "go on"},
        ]
        assert server.post("/v1/chat/completions", {"messages": chat}).status_code == 200
        assert ours == engine.submitted[-1].prompt_token_ids
    assert prompt_of(engine, tokenizer).count("<turn|>") == 7


def test_results_are_paired_with_calls_by_id(scripted: Scripted, tokenizer: Tokenizer) -> None:
    calls = [{"type": "tool_use", "id": name, "name": "get_weather", "input": {}} for name in "ab"]
    results = [{"type": "tool_result", "tool_use_id": name, "content": f"result {name}"} for name in "ab"]
    prompts = []
    with scripted("one") as (server, engine):
        for sent in (results, results[::-1]):
            messages = [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": calls},
                {"role": "user", "content": sent},
            ]
            assert post(server, messages=messages).status_code == 200
            prompts.append(prompt_of(engine, tokenizer))
    assert prompts[0] == prompts[1]
    assert prompts[0].index("result a") < prompts[0].index("result b")


def test_thinking_and_its_budget(scripted: Scripted, tokenizer: Tokenizer) -> None:
    with scripted(THOUGHT + "Clear.") as (server, engine):
        message = post(server, thinking={"type": "enabled", "budget_tokens": 5}).json()
        assert [block["type"] for block in message["content"]] == ["thinking", "text"]
        assert engine.submitted[-1].sampling.thinking_token_budget == 5
        assert "<|think|>" in prompt_of(engine, tokenizer)
        omitted = post(server, thinking={"type": "adaptive", "display": "omitted"}).json()
        assert [block["type"] for block in omitted["content"]] == ["text"]
        assert "<|think|>" in prompt_of(engine, tokenizer)
        post(server, thinking={"type": "disabled"})
        assert "<|think|>" not in prompt_of(engine, tokenizer)


def test_an_answer_that_was_begun_is_continued(scripted: Scripted, tokenizer: Tokenizer) -> None:
    with scripted("B)") as (server, engine):
        begun = [*ASK, {"role": "assistant", "content": "The best answer is ("}]
        assert post(server, messages=begun).json()["content"] == [{"type": "text", "text": "B)"}]
    assert prompt_of(engine, tokenizer).endswith("<|turn>assistant\nThe best answer is (")


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        ({"type": "any"}, "tool_calls"),
        ({"type": "tool", "name": "get_weather"}, "tool_calls"),
        ({"type": "none"}, None),
    ],
)
def test_tool_choice(talking: tuple[RunningServer, Any], choice: dict[str, Any], kind: str | None) -> None:
    server, engine = talking
    assert post(server, tools=[TOOL], tool_choice=choice).status_code == 200
    grammar = engine.submitted[-1].grammar
    assert (None if grammar is None else grammar.kind) == kind


def test_one_call_at_a_time_and_a_schema_for_the_answer(talking: tuple[RunningServer, Any]) -> None:
    server, engine = talking
    message = post(server, tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True}).json()
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    output_format = {"type": "json_schema", "schema": schema}
    for body in ({"output_config": {"format": output_format, "effort": "low"}}, {"output_format": output_format}):
        post(server, **body)
        assert engine.submitted[-1].grammar.field == "response_format"


def test_null_stands_for_what_is_left_out(talking: tuple[RunningServer, Any]) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": None}
    messages = [*ASK, {"role": "assistant", "content": [thought, {"type": "text", "text": "a"}]}, *ASK]
    choice = {"type": "auto", "disable_parallel_tool_use": None}
    message = post(talking[0], messages=messages, tools=[TOOL], tool_choice=choice, max_tokens=100).json()
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use", "tool_use"]


def test_tokens_are_counted_without_an_answer(scripted: Scripted) -> None:
    with scripted("ok") as (server, engine), client_of(server) as client:
        counted = client.messages.count_tokens(model="tiny", messages=ASK, tools=[TOOL], system="Be brief.")  # type: ignore[list-item]
        assert not engine.submitted
        post(server, tools=[TOOL], system="Be brief.")
        assert counted.input_tokens == len(engine.submitted[0].prompt_token_ids)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
USE: dict[str, Any] = {"type": "tool_use", "id": "a", "name": "b", "input": {}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "a"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"stop_sequences": [""]}, "stop_sequences holds an empty string"),
        ({"tool_choice": {"type": "tool"}, "tools": [TOOL]}, 'as in {"type": "tool", "name": "..."}'),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [TOOL]}, "tool_choice names 'x', which is not among"),
        ({"tool_choice": {"type": "any"}}, "tool_choice is of type any, but there are no tools"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0] is an image"),
        (
            {"messages": [{"role": "user", "content": [{**RESULT, "content": [IMAGE]}]}]},
            "messages[0].content[0].content[0] is an image",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "is a document"),
        ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]}, "thought"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]}, "the role user"),
        ({"messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]}, "messages[0].content[0].type"),
        ({"messages": []}, "messages is empty"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0] has the type 'web_search"),
        ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools[0].input_examples is not supported"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name is 'a b'"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "no"}}, "tool_choice names 'no'"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens is missing"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, "thinking.budget_tokens is 5000, but the context"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
        ({"thread": {"type": "create"}}, "thread is not supported. Send the whole conversation"),
        ({"compaction": {"type": "auto"}}, "compaction is not supported"),
        (
            {"tools": [TOOL], "output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
            "output_config.format has",
        ),
        ({"temperature": -1}, "temperature"),
        (
            {"messages": [*ASK, {"role": "assistant", "content": [USE]}]},
            "The last message is to be continued",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{**USE, "input": 1}]}, *ASK]},
            "messages[0].content[0].input must be an object",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_anthropics_shape(
    talking: tuple[RunningServer, Any], body: dict[str, Any], words: str
) -> None:
    response = post(talking[0], **body)
    assert response.status_code == 400, response.text
    error = response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert words in error["error"]["message"]


def test_errors_as_the_client_raises_them(scripted: Scripted) -> None:
    settings: Any = {"max_tokens": 9, "messages": ASK}
    with scripted("one", api_key=("secret",)) as (server, _):
        with client_of(server) as client, pytest.raises(anthropic.AuthenticationError, match="API key is missing"):
            client.messages.create(model="tiny", **settings)
        right = anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0)
        as_bearer = anthropic.Anthropic(base_url=server.url, auth_token="secret", max_retries=0)
        with right, as_bearer:
            assert right.messages.create(model="tiny", **settings).content
            assert as_bearer.messages.create(model="tiny", **settings).content
            with pytest.raises(anthropic.NotFoundError, match="does not exist"):
                right.messages.create(model="other", **settings)
        for path, status in (("/v1/messages/nowhere", 404), ("/v1/messages", 405)):
            error = server.get(path, headers={"x-api-key": "secret"})
            assert (error.status_code, error.json()["type"]) == (status, "error")
    with scripted("one two three", engine={"fail_after": 2}) as (server, _), client_of(server) as client:
        with pytest.raises(anthropic.InternalServerError, match="NaN"):
            client.messages.create(model="tiny", **settings)
        with (
            pytest.raises(anthropic.APIStatusError, match="NaN"),
            client.messages.stream(model="tiny", **settings) as stream,
        ):
            stream.until_done()
