"""Fields of chat completions that other servers and older clients have: what they mean here."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from facet.tokens import Tokenizer
from tests.chat.conversations import WEATHER_TOOL
from tests.server.conftest import Scripted
from tests.server.running import RunningServer

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "Weather in Paris?"}]
CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
FUNCTION = WEATHER_TOOL["function"]
OTHER_TOOL = {"type": "function", "function": {"name": "other"}}


@pytest.fixture(scope="module")
def calling(scripted: Scripted) -> Iterator[tuple[RunningServer, Any]]:
    with scripted("I look." + CALL + CALL) as (server, engine):
        yield server, engine


def ask(server: RunningServer, **body: Any) -> dict[str, Any]:
    response = server.post(CHAT, {"messages": ASK, **body})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def deltas(server: RunningServer, **body: Any) -> list[dict[str, Any]]:
    *events, _ = server.chunks(CHAT, {"messages": ASK, **body})
    return [choice for event in events for choice in json.loads(event)["choices"]]


def prompt_of(engine: Any, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(engine.submitted[-1].prompt_token_ids, skip_special_tokens=False)


PARTS = [{"type": "text", "text": "It "}, {"type": "text", "text": "is "}]


@pytest.mark.parametrize("text", ["It is ", "<turn|> it's", PARTS])
def test_the_last_message_is_continued_and_echoed(scripted: Scripted, tokenizer: Tokenizer, text: Any) -> None:
    messages = [*ASK, {"role": "assistant", "content": text}]
    plain = text if isinstance(text, str) else "It is "
    with scripted("clear.") as (server, engine):
        choice = ask(server, messages=messages, continue_final_message=True)
        prompt = prompt_of(engine, tokenizer)
        echoed = ask(server, messages=messages, continue_final_message=True, echo=True)
        streamed = deltas(server, messages=messages, continue_final_message=True, echo=True)
        of_a_question = ask(server, echo=True)
    assert choice["message"]["content"] == of_a_question["message"]["content"] == "clear."
    assert prompt == f"<bos><|turn>user\nWeather in Paris?<turn|>\n<|turn>assistant\n{plain}"
    end_of_turn = tokenizer.token_to_id("<turn|>")
    assert engine.submitted[0].prompt_token_ids.count(end_of_turn) == 1, "text from outside is no control token"
    assert echoed["message"]["content"] == plain + "clear."
    assert "".join(choice["delta"].get("content") or "" for choice in streamed) == plain + "clear."


def test_only_allowed_tools_can_be_called(calling: tuple[RunningServer, Any], tokenizer: Tokenizer) -> None:
    """The others stay in the prompt, which is the same with and without the choice."""
    server, engine = calling
    tools = [WEATHER_TOOL, OTHER_TOOL]
    ask(server, tools=tools)
    free = engine.submitted[-1]
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    ask(server, tools=tools, tool_choice=choice)
    bound = engine.submitted[-1]
    assert bound.prompt_token_ids == free.prompt_token_ids
    assert "call:other" in free.grammar.sources[0]
    assert "call:other" not in bound.grammar.sources[0]
    assert bound.grammar.trigger_token_id is not None
    flat = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    functions = [{"type": "function", **tool["function"]} for tool in tools]
    assert server.post("/v1/responses", {"input": "a", "tools": functions, "tool_choice": flat}).status_code == 200
    assert engine.submitted[-1].grammar.trigger_token_id is None
    assert "call:other" not in engine.submitted[-1].grammar.sources[0]


def test_functions_are_tools_in_their_older_form(calling: tuple[RunningServer, Any]) -> None:
    server, engine = calling
    choice = ask(server, functions=[FUNCTION], function_call="auto")
    assert choice["finish_reason"] == "function_call"
    call = choice["message"]["function_call"]
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"})
    assert (choice["message"]["tool_calls"], choice["message"]["content"]) == ([], "I look.")
    streamed = deltas(server, functions=[FUNCTION])
    parts = [choice["delta"]["function_call"] for choice in streamed if "function_call" in choice["delta"]]
    assert (parts[0]["name"], "".join(part.get("arguments", "") for part in parts)) == (
        "get_weather",
        call["arguments"],
    )
    assert streamed[-1]["finish_reason"] == "function_call"
    ask(server, functions=[FUNCTION], function_call={"name": "get_weather"})
    assert engine.submitted[-1].grammar.trigger_token_id is None


def test_calls_and_results_of_functions_are_those_of_tools(calling: tuple[RunningServer, Any]) -> None:
    server, engine = calling
    old = [
        {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": "{}"}},
        {"role": "function", "name": "get_weather", "content": "rain"},
    ]
    new = [
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "get_weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
    ]
    ask(server, messages=[*ASK, *old], functions=[FUNCTION])
    ours = engine.submitted[-1].prompt_token_ids
    ask(server, messages=[*ASK, *new], tools=[WEATHER_TOOL])
    assert ours == engine.submitted[-1].prompt_token_ids


def test_llama_cpps_names_for_structured_outputs(calling: tuple[RunningServer, Any]) -> None:
    server, engine = calling
    for path, prompt in ((CHAT, {"messages": ASK}), ("/v1/completions", {"prompt": "a"})):
        assert server.post(path, {**prompt, "grammar": 'root ::= "yes" | "no"'}).status_code == 200
        assert engine.submitted[-1].grammar.kind == "ebnf"
        for schema in ({"type": "integer"}, '{"type": "integer"}'):
            assert server.post(path, {**prompt, "json_schema": schema}).status_code == 200
            assert engine.submitted[-1].grammar.kind == "json_schema"


def test_a_format_is_moot_where_the_answer_is_a_call(calling: tuple[RunningServer, Any]) -> None:
    server, engine = calling
    settings: Any = {"tools": [WEATHER_TOOL], "response_format": {"type": "json_object"}}
    ask(server, **settings)
    assert engine.submitted[-1].grammar.kind == "tool_calls_or_json"
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        ask(server, **settings, tool_choice=choice)
        assert engine.submitted[-1].grammar.kind == "tool_calls"


def test_log_probabilities_of_named_tokens(calling: tuple[RunningServer, Any], tokenizer: Tokenizer) -> None:
    """In the order in which they are named, whatever `top_logprobs` says."""
    server, engine = calling
    named = [tokenizer.token_to_id(text) for text in ("e", "a")]
    for extra in ({}, {"top_logprobs": 3}):
        choice = ask(server, logprobs=True, logprob_token_ids=named, **extra)
        assert engine.submitted[-1].sampling.logprob_token_ids == tuple(named)
        assert [one["token"] for one in choice["logprobs"]["content"][0]["top_logprobs"]] == ["e", "a"]
    body = {"prompt": "x", "max_tokens": 2, "logprob_token_ids": named}
    logprobs = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert [set(top) >= {"e", "a"} for top in logprobs["top_logprobs"]] == [True, True]


PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Changes files."}}
INPUT = '--- a\n+ say "hi" {é}\n'


def test_a_custom_tool_takes_text(scripted: Scripted, tokenizer: Tokenizer) -> None:
    """A call of it, whole and streamed, between a call of a function; then the round trip."""
    custom_call = f'<|tool_call>call:patch{{input:<|"|>{INPUT}<|"|>}}<tool_call|>'
    with scripted("Now." + custom_call + CALL) as (server, engine):
        choice = ask(server, tools=[PATCH, WEATHER_TOOL])
        chunks = deltas(server, tools=[PATCH, WEATHER_TOOL])
        called = choice["message"]["tool_calls"]
        messages = [*ASK, choice["message"], {"role": "tool", "tool_call_id": called[0]["id"], "content": "done"}]
        named = {"type": "custom", "custom": {"name": "patch"}}
        ask(server, messages=messages, tools=[PATCH], tool_choice=named)
    assert choice["finish_reason"] == "tool_calls"
    assert (called[0]["type"], called[0]["custom"]) == ("custom", {"name": "patch", "input": INPUT})
    assert (called[1]["type"], called[1]["function"]["name"]) == ("function", "get_weather")
    streamed = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", []) if call["index"] == 0]
    assert (streamed[0]["type"], streamed[0]["custom"]) == ("custom", {"name": "patch", "input": ""})
    assert "".join(call["custom"]["input"] for call in streamed) == INPUT
    assert len(streamed) > 4
    first, *_, last = engine.submitted
    declared = tokenizer.decode(first.prompt_token_ids)
    assert '"input"' in declared
    assert "Changes files." in declared
    assert "<|tool_call>patch<tool_call|>" in tokenizer.decode(last.prompt_token_ids, skip_special_tokens=False)
    assert last.grammar.trigger_token_id is None, "it must call"


def test_a_template_of_the_requests_own(scripted: Scripted, tokenizer: Tokenizer) -> None:
    """Where the server allows it; a message's text stays text."""
    messages = [{"role": "user", "content": "hi<turn|>"}]
    template = "{{ bos_token }}{% for m in messages %}<|turn>{{ m.content }} {{ who }}<turn|>{% endfor %}"
    fields: Any = {"messages": messages, "chat_template": template, "chat_template_kwargs": {"who": "me"}}
    with scripted("yes", model={"trusts_request_templates": True}) as (server, engine):
        ask(server, **fields)
        shown = server.post("/tokenize", fields).json()["tokens"]
    sent = list(engine.submitted[0].prompt_token_ids)
    assert sent == shown
    assert tokenizer.decode(sent, skip_special_tokens=False) == "<bos><|turn>hi<turn|> me<turn|>"
    assert sent.count(tokenizer.token_to_id("<turn|>")) == 1


def test_a_structural_tag(calling: tuple[RunningServer, Any]) -> None:
    server, engine = calling
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    for fields in ({"response_format": tag}, {"structured_outputs": {"structural_tag": tag}}):
        ask(server, **fields)
        assert engine.submitted[-1].grammar.kind == "structural_tag"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"grammar": "a", "json_schema": {}}, "json_schema", "Send one of them"),
        ({"grammar": "a", "structured_outputs": {"regex": "a"}}, "grammar", "Send one of them"),
        ({"json_schema": "{"}, "structured_outputs", "not JSON"),
        ({"logprob_token_ids": [3]}, "logprob_token_ids", "Set logprobs to true"),
        ({"logprob_token_ids": [3] * 21, "logprobs": True}, "logprob_token_ids", "the limit of this server is 20"),
        ({"logprob_token_ids": [-1], "logprobs": True}, "logprob_token_ids", "token ids are 0 or more"),
        ({"chat_template": "{{ messages }}"}, "chat_template", "--trust-request-chat-template"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "must be an object"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "must be an object"),
        ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, "tools", "A name has up to"),
        ({"tools": [{"type": "custom", "custom": 1}]}, "tools", "must be an object with a name"),
        ({"tools": [{"type": "web_search"}]}, "tools", "Only 'function' and 'custom' are supported"),
        ({"functions": [FUNCTION], "tools": [WEATHER_TOOL]}, "functions", "only one form"),
        ({"function_call": "auto"}, "function_call", "needs functions"),
        ({"functions": [FUNCTION], "function_call": {"name": "no"}}, "tool_choice", "names 'no'"),
        ({"functions": [{}]}, "tools", "A name has up to"),
        ({"tools": [WEATHER_TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "a list of tools"),
        (
            {"tools": [WEATHER_TOOL], "tool_choice": {"type": "allowed_tools", "mode": "any", "tools": [WEATHER_TOOL]}},
            "tool_choice",
            "must be 'auto' or 'required'",
        ),
        (
            {"tools": [WEATHER_TOOL], "tool_choice": {"type": "allowed_tools", "tools": [OTHER_TOOL]}},
            "tool_choice",
            "names 'other', which is not among the tools",
        ),
        (
            {"tools": [WEATHER_TOOL], "tool_choice": {"type": "allowed_tools", "tools": ["auto"]}},
            "tool_choice",
            "names no function",
        ),
    ],
)
def test_what_is_wrong_is_named(
    calling: tuple[RunningServer, Any], body: dict[str, Any], param: str, words: str
) -> None:
    response = calling[0].post(CHAT, {"messages": ASK, **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
