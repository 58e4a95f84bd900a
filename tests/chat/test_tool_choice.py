"""Tools, tool_choice and thinking: what the template is given, and what is refused by its field."""

from typing import Any

import pytest

from facet.chat.tool_choice import ToolChoice, normalize_tools, template_variables
from facet.errors import RequestError
from tests.chat.conversations import RICH_TOOL, WEATHER_TOOL

TOOLS = [WEATHER_TOOL, RICH_TOOL]
NAMED = {"type": "function", "function": {"name": "book_table"}}


@pytest.mark.parametrize(
    ("tools", "tool_choice", "choice", "declared"),
    [
        (None, None, ToolChoice("none"), None),
        ([], None, ToolChoice("none"), None),
        (None, "auto", ToolChoice("none"), None),
        (None, "none", ToolChoice("none"), None),
        (TOOLS, None, ToolChoice("auto"), TOOLS),
        (TOOLS, "auto", ToolChoice("auto"), TOOLS),
        (TOOLS, "required", ToolChoice("required"), TOOLS),
        (TOOLS, "none", ToolChoice("none"), None),
        (TOOLS, NAMED, ToolChoice("named", "book_table"), TOOLS),
        (TOOLS, {"type": "function", "name": "book_table"}, ToolChoice("named", "book_table"), TOOLS),
    ],
)
def test_choice(tools: Any, tool_choice: Any, choice: ToolChoice, declared: Any) -> None:
    use = normalize_tools(tools, tool_choice)
    assert use.choice == choice
    assert use.for_template == declared
    assert list(use.tools) == (tools or [])


def test_template_gets_a_copy_without_nulls() -> None:
    tool = {"type": "function", "function": {"name": "now", "description": None, "parameters": {"type": "object"}}}
    use = normalize_tools([tool])
    assert use.for_template == [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
    use.tools[0]["function"]["parameters"]["type"] = "changed"
    assert tool["function"]["parameters"] == {"type": "object"}  # type: ignore[index]


@pytest.mark.parametrize(
    ("tools", "tool_choice", "field", "reason"),
    [
        ("f", None, "tools", "tools must be a list"),
        ([5], None, "tools", "tools[0] must be an object"),
        ([{"type": "retrieval"}], None, "tools", "tools[0] has the type 'retrieval'"),
        ([{"type": "function"}], None, "tools", "tools[0].function must be an object"),
        ([{"type": "function", "function": {}}], None, "tools", "tools[0].function.name is None"),
        ([{"type": "function", "function": {"name": "a b"}}], None, "tools", "tools[0].function.name is 'a b'"),
        ([{"type": "custom", "custom": {"name": "a b"}}], None, "tools", "tools[0].custom.name is 'a b'"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], None, "tools", "must be a JSON schema"),
        ([{"type": "function", "function": {"name": "f", "description": 1}}], None, "tools", "description must be"),
        ([{"type": "function", "function": {"name": "f", "x": {1}}}], None, "tools", "cannot be written as JSON"),
        ([WEATHER_TOOL, WEATHER_TOOL], None, "tools", "declares 'get_weather' twice"),
        (TOOLS, "always", "tool_choice", "is 'always', but must be 'none', 'auto', 'required' or name a function"),
        (TOOLS, 5, "tool_choice", "is 5"),
        (TOOLS, {"type": "function"}, "tool_choice", "must look like"),
        (TOOLS, {"type": "tool", "function": {"name": "book_table"}}, "tool_choice", "must look like"),
        (TOOLS, {"type": "function", "function": {"name": "x"}}, "tool_choice", "names 'x', which is not among"),
        (None, "required", "tool_choice", "there are no tools"),
        (None, NAMED, "tool_choice", "not among the tools (none)"),
    ],
)
def test_refused(tools: Any, tool_choice: Any, field: str, reason: str) -> None:
    with pytest.raises(RequestError) as refusal:
        normalize_tools(tools, tool_choice)
    assert reason in str(refusal.value)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("effort", "kwargs", "defaults", "expected"),
    [
        (None, None, None, {"enable_thinking": False}),
        ("none", None, None, {"enable_thinking": False, "reasoning_effort": "none"}),
        ("minimal", None, None, {"enable_thinking": False, "reasoning_effort": "minimal"}),
        ("low", None, None, {"enable_thinking": True, "reasoning_effort": "low"}),
        ("medium", {}, None, {"enable_thinking": True, "reasoning_effort": "medium"}),
        ("high", {"x": [1]}, None, {"enable_thinking": True, "reasoning_effort": "high", "x": [1]}),
        (None, {"enable_thinking": True}, None, {"enable_thinking": True}),
        ("high", {"enable_thinking": False}, None, {"enable_thinking": False, "reasoning_effort": "high"}),
        (None, None, {"enable_thinking": True}, {"enable_thinking": True}),
        ("none", None, {"enable_thinking": True}, {"enable_thinking": False, "reasoning_effort": "none"}),
        (None, {"a": 2}, {"a": 1, "b": 1}, {"enable_thinking": False, "a": 2, "b": 1}),
    ],
)
def test_variables(effort: Any, kwargs: Any, defaults: Any, expected: dict[str, Any]) -> None:
    variables = template_variables(
        reasoning_effort=effort, chat_template_kwargs=kwargs, default_chat_template_kwargs=defaults
    )
    assert variables == expected


@pytest.mark.parametrize(
    ("effort", "kwargs", "field"),
    [
        ("extreme", None, "reasoning_effort"),
        (5, None, "reasoning_effort"),
        (["low"], None, "reasoning_effort"),
        (None, "x", "chat_template_kwargs"),
        (None, [1], "chat_template_kwargs"),
        (None, {1: 2}, "chat_template_kwargs"),
        (None, {"enable_thinking": "yes"}, "chat_template_kwargs"),
    ],
)
def test_variables_refused(effort: Any, kwargs: Any, field: str) -> None:
    with pytest.raises(RequestError) as refusal:
        template_variables(reasoning_effort=effort, chat_template_kwargs=kwargs)
    assert refusal.value.field == field
