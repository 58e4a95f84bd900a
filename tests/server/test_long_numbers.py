"""Calls whose numbers have more digits than Python converts: they are read, answered, and taken back."""

from collections.abc import Iterator

import pytest

from tests.chat.conversations import WEATHER_TOOL
from tests.server.conftest import Scripted
from tests.server.running import RunningServer

NUMBER = "1" * 4500
ASK = [{"role": "user", "content": "one"}]
FUNCTION = WEATHER_TOOL["function"]


@pytest.fixture(scope="module")
def server(scripted: Scripted) -> Iterator[RunningServer]:
    text = f"<|tool_call>call:{FUNCTION['name']}{{n:{NUMBER}}}<tool_call|>"
    with scripted(text, model={"max_model_len": 16_384}) as (server, _):
        yield server


def test_in_chats(server: RunningServer) -> None:
    answer = server.post("/v1/chat/completions", {"messages": ASK, "tools": [WEATHER_TOOL]}).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == f'{{"n":{NUMBER}}}'
    result = {"role": "tool", "tool_call_id": answer["message"]["tool_calls"][0]["id"], "content": "rain"}
    back = [*ASK, answer["message"], result]
    assert server.post("/v1/chat/completions", {"messages": back, "tools": [WEATHER_TOOL]}).status_code == 200


def test_in_messages(server: RunningServer) -> None:
    tool = {"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}
    response = server.post("/v1/messages", {"messages": ASK, "max_tokens": 8000, "tools": [tool]})
    assert response.status_code == 200
    assert f'"input":{{"n":{NUMBER}}}' in response.text


def test_in_responses(server: RunningServer) -> None:
    tool = {"type": "function", "name": FUNCTION["name"], "parameters": FUNCTION["parameters"]}
    first = server.post("/v1/responses", {"input": "one", "tools": [tool]}).json()
    assert first["output"][0]["arguments"] == f'{{"n":{NUMBER}}}'
    result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "rain"}
    then = {"input": [result], "previous_response_id": first["id"], "tools": [tool]}
    assert server.post("/v1/responses", then).status_code == 200


def test_in_ollamas_chats(server: RunningServer) -> None:
    response = server.post("/api/chat", {"model": "tiny", "messages": ASK, "tools": [WEATHER_TOOL], "stream": False})
    assert response.status_code == 200, response.text
    assert NUMBER in response.text
