"""Answers cut, stopped or broken in the middle: what both APIs say of them, whole and streamed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chat.conversations import WEATHER_TOOL
from tests.prompts.doors import Doors, open_doors, write_model_folder
from tests.server.conftest import END

ASK = [{"role": "user", "content": "Weather in Paris?"}]
CHAT: dict[str, Any] = {"messages": ASK}
TOOLS: dict[str, Any] = {"messages": ASK, "tools": [WEATHER_TOOL]}
TEXT: dict[str, Any] = {"prompt": "Hello"}
HALF = "𒀀".encode()[:3]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with open_doors(write_model_folder(tmp_path_factory.mktemp("edges"))) as doors:
        yield doors


def said(doors: Doors, *parts: str | bytes) -> list[int]:
    """Token ids of texts with control tokens, and of bytes as they are."""
    tokenizer = doors.llm.get_tokenizer()
    token_ids: list[int] = []
    for part in parts:
        if isinstance(part, str):
            token_ids += tokenizer.encode(part, add_special_tokens=False)
        else:
            token_ids += [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in part]
    return token_ids


def answers(doors: Doors, ask: dict[str, Any], sampling: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What Python returns, what the server returns, and what it streams, in one shape."""
    (output,) = doors.ask_python(ask, sampling)
    (completion,) = output.outputs
    reply = completion.reply
    yield {
        "text": completion.text if reply is None else reply.content or "",
        "reasoning": "" if reply is None else reply.reasoning or "",
        "calls": [] if reply is None else [[call.function.name, call.function.arguments] for call in reply.tool_calls],
        "finish": (completion.finish_reason, completion.stop_reason),
    }
    (choice,) = doors.ask_http(ask, sampling)["choices"]
    message = choice.get("message") or {"content": choice["text"]}
    yield {
        "text": message["content"] or "",
        "reasoning": message.get("reasoning") or "",
        "calls": [
            [call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or []
        ],
        "finish": (choice["finish_reason"], choice["stop_reason"]),
    }
    path = "/v1/chat/completions" if "messages" in ask else "/v1/completions"
    streamed: dict[str, Any] = {"text": "", "reasoning": "", "calls": [], "finish": None}
    for event in doors.server.chunks(path, {**ask, **sampling, "stream": True})[:-1]:
        (choice,) = json.loads(event)["choices"]
        delta = choice.get("delta") or {"content": choice.get("text")}
        streamed["text"] += delta.get("content") or ""
        streamed["reasoning"] += delta.get("reasoning") or ""
        for call in delta.get("tool_calls") or []:
            if call["index"] == len(streamed["calls"]):
                streamed["calls"].append([call["function"]["name"], ""])
            streamed["calls"][call["index"]][1] += call["function"].get("arguments") or ""
        streamed["finish"] = (choice["finish_reason"], choice.get("stop_reason"))
    yield streamed


def expect(doors: Doors, ask: dict[str, Any], sampling: dict[str, Any], **expected: Any) -> None:
    for answer in answers(doors, ask, sampling):
        assert answer == {"text": "", "reasoning": "", "calls": [], **expected}


@pytest.mark.parametrize("ask", [TEXT, CHAT], ids=["text", "chat"])
def test_half_a_character_at_the_cut_is_held_back(doors: Doors, ask: dict[str, Any]) -> None:
    token_ids = said(doors, "one ", "é".encode(), HALF)
    doors.say(lambda request: [*token_ids, *said(doors, " more"), END])
    expect(doors, ask, {"max_tokens": len(token_ids)}, text="one é", finish=("length", None))


def test_half_a_character_at_the_end_of_a_thought_is_held_back(doors: Doors) -> None:
    token_ids = said(doors, "<|channel>thought\nhm ", HALF)
    doors.say(lambda request: [*token_ids, END])
    expect(doors, CHAT, {"max_tokens": len(token_ids)}, reasoning="hm ", finish=("length", None))


def test_a_stop_string_inside_a_thought_ends_the_answer(doors: Doors) -> None:
    token_ids = [*said(doors, "<|channel>thought\none STOP two<channel|>three"), END]
    doors.say(lambda request: token_ids)
    expect(doors, CHAT, {"stop": ["STOP"], "max_tokens": 90}, reasoning="one ", finish=("stop", "STOP"))


def test_a_stop_string_ends_an_answer_where_it_first_comes_in_a_token(doors: Doors) -> None:
    token_ids = said(doors, "one", "mm")
    assert len(token_ids) == len(said(doors, "one")) + 1
    doors.say(lambda request: [*token_ids, END])
    for ask in (TEXT, CHAT):
        sampling = {"stop": ["m"], "max_tokens": 90}
        expect(doors, ask, sampling, text="one", finish=("stop", "m"))
        for keeps, text in ((False, "one"), (True, "onem")):
            (output,) = doors.ask_python(ask, sampling | {"include_stop_str_in_output": keeps})
            assert output.outputs[0].text == text


def test_a_call_cut_before_its_bracket_says_nothing(doors: Doors) -> None:
    token_ids = said(doors, "Let me see.<|tool_call>call:get_wea")
    doors.say(lambda request: [*token_ids, END])
    expect(doors, TOOLS, {"max_tokens": len(token_ids)}, text="Let me see.", finish=("length", None))


@pytest.mark.parametrize("marker", ["<tool_call|>", "<|channel>", "<turn|>"])
def test_a_marker_inside_a_string_leaves_the_call_unfinished(doors: Doors, marker: str) -> None:
    token_ids = [*said(doors, f'<|tool_call>call:get_weather{{city:<|"|>Paris is {marker}'), END]
    doors.say(lambda request: token_ids)
    for answer in answers(doors, TOOLS, {"max_tokens": 90}):
        assert answer["calls"] == [["get_weather", '{"city":"Paris is ']]
        assert answer["finish"] == ("stop", None), "there is no call to carry out"


def test_a_whole_call_beside_a_broken_one_is_to_be_carried_out(doors: Doors) -> None:
    whole = '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>'
    token_ids = [*said(doors, whole + '<|tool_call>call:get_weather{city:<|"|>Par<tool_call|>'), END]
    doors.say(lambda request: token_ids)
    calls = [["get_weather", '{"city":"Rome"}'], ["get_weather", '{"city":"Par']]
    expect(doors, TOOLS, {"max_tokens": 90}, calls=calls, finish=("tool_calls", None))


@pytest.mark.parametrize("prefix", ["", ":", "function:", "call "])
def test_a_call_without_its_prefix_is_read(doors: Doors, prefix: str) -> None:
    token_ids = [*said(doors, f'<|tool_call>{prefix}get_weather{{city:<|"|>Paris<|"|>}}<tool_call|>'), END]
    doors.say(lambda request: token_ids)
    calls = [["get_weather", '{"city":"Paris"}']]
    expect(doors, TOOLS, {"max_tokens": 90}, calls=calls, finish=("tool_calls", None))
