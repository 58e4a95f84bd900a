"""The bundled model's template against the project's other one for Gemma 4's format, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from facet.chat.template import ChatTemplate
from facet.errors import RequestError
from tests.chat.conversations import (
    CALLS_PARIS,
    RICH_DECLARATION,
    RICH_TOOL,
    WEATHER_CONVERSATION,
    WEATHER_TOOL,
    assistant,
    tool_call,
    tool_result,
    user,
)

SYSTEM = {"role": "system", "content": " Be brief. "}
TWO_CALLS = assistant(
    tool_calls=[tool_call("get_weather", {"city": city}, f"call_{city}") for city in ("Paris", "Rome")],
    reasoning="Two cities.",
)
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [user(" Hello ")],
    "system": [SYSTEM, user("Hello")],
    "system in parts": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, user("Hi")],
    "a whole call": WEATHER_CONVERSATION,
    "waiting for a result": [user("Weather?"), CALLS_PARIS, tool_result("20 degrees", "call_1")],
    "two calls": [user("Weather?"), TWO_CALLS, tool_result("20", "call_Paris"), tool_result("25", "call_Rome")],
    "results in another order": [user("?"), TWO_CALLS, tool_result("25", "call_Rome"), tool_result("20", "call_Paris")],
    "old thoughts": [user("a"), assistant("b", reasoning="hm"), user("c"), assistant("d", reasoning="hm")],
    "thoughts inside the text": [user("a"), assistant("x<|channel>thought\nhm\n<channel|>b"), user("c")],
    "no answer to a result": [user("a"), CALLS_PARIS, tool_result("20", "call_1"), user("Well?")],
    "nested arguments": [user("a"), assistant(tool_calls=[tool_call("f", {"b": [1, {"c": None}], "A": True}, "1")])],
    "a result by name": [user("a"), CALLS_PARIS, tool_result("20", None, name="get_weather")],
    "text in parts": [user([{"type": "text", "text": "one"}])],
    "a picture": [user([{"type": "image"}, {"type": "text", "text": "What is this?"}])],
}


@pytest.fixture(scope="module")
def other_template() -> ChatTemplate:
    path = Path(__file__).parents[1] / "chat" / "gemma4_like.jinja"
    return ChatTemplate(path.read_text(encoding="utf-8"), special_tokens={"bos_token": "<bos>"})


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("tools", [None, [WEATHER_TOOL], [WEATHER_TOOL, RICH_TOOL]])
def test_both_templates_write_the_same(
    template: ChatTemplate, other_template: ChatTemplate, name: str, thinks: bool, tools: list[dict[str, Any]] | None
) -> None:
    for adds_prompt in (False, True):
        ours, theirs = (
            one.render(
                CONVERSATIONS[name],
                tools=tools,
                add_generation_prompt=adds_prompt,
                variables={"enable_thinking": thinks},
            ).text
            for one in (template, other_template)
        )
        assert ours == theirs


def test_a_declaration_with_everything(template: ChatTemplate) -> None:
    assert RICH_DECLARATION in template.render([user("Hi")], tools=[RICH_TOOL]).text


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([user([{"type": "audio", "audio": {}}])], "it can be text or image"),
        ([user("Hi"), tool_result("20", "call_1")], "must follow"),
    ],
)
def test_what_is_refused(template: ChatTemplate, messages: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        template.render(messages)
