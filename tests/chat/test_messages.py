"""Messages as clients send them: what is passed on to templates, and what is refused, where."""

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.chat import ChatTemplate
from facet.chat.messages import normalize_messages
from facet.errors import RequestError

USER = {"role": "user", "content": "hi"}


def call(arguments: Any = "{}", **fields: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}, **fields}


def calls(*tool_calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(tool_calls)}


# name: (message, what the template is given)
ACCEPTED = {
    "result of nothing": (
        {"role": "tool", "content": None, "name": "f"},
        {"role": "tool", "content": "", "name": "f"},
    ),
    "part that says no type": (
        {"role": "user", "content": [{"text": "x"}]},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
    ),
    "reply that was a thought": ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
    "text": (USER, USER),
    "system": ({"role": "system", "content": "s"}, {"role": "system", "content": "s"}),
    "developer": ({"role": "developer", "content": ""}, {"role": "developer", "content": ""}),
    "name": ({**USER, "name": "Ann"}, {**USER, "name": "Ann"}),
    "fields templates do not know": ({**USER, "cache_control": {}, "__class__": "x"}, USER),
    "parts": (
        {"role": "user", "content": [{"type": "text", "text": "a", "x": 1}, {"type": "input_text", "text": "b"}, "c"]},
        {"role": "user", "content": [{"type": "text", "text": text} for text in "abc"]},
    ),
    "no parts": ({"role": "user", "content": []}, {"role": "user", "content": []}),
    "reply as openai's client stores it": (
        {
            "role": "assistant",
            "content": "x",
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "tool_calls": None,
        },
        {"role": "assistant", "content": "x"},
    ),
    "refusal": ({"role": "assistant", "refusal": "No."}, {"role": "assistant", "content": "No."}),
    "reasoning": (
        {"role": "assistant", "content": "x", "reasoning": "r"},
        {"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"},
    ),
    "reasoning_content": (
        {"role": "assistant", "content": "x", "reasoning_content": "r"},
        {"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"},
    ),
    "reasoning alone": (
        {"role": "assistant", "content": None, "reasoning": "r", "reasoning_content": "other"},
        {"role": "assistant", "content": "", "reasoning": "r", "reasoning_content": "r"},
    ),
    "calls": (
        calls(call('{"a": {"b": [1, null]}}'), call({"a": 1}), call(""), call(None), call(id=None, type=None)),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                call({"a": {"b": [1, None]}}),
                call({"a": 1}),
                call({}),
                call({}),
                {"type": "function", "function": {"name": "f", "arguments": {}}},
            ],
        },
    ),
    "result": (
        {"role": "tool", "content": "20", "tool_call_id": "c1"},
        {"role": "tool", "content": "20", "tool_call_id": "c1"},
    ),
    "result by name": (
        {"role": "tool", "content": "20", "name": "f"},
        {"role": "tool", "content": "20", "name": "f"},
    ),
}

# name: (messages, what the message must say)
REFUSED: dict[str, tuple[Any, str]] = {
    "none": ([], "messages is empty"),
    "null": (None, "messages must be a list of messages, not null"),
    "a string": ("hi", "messages must be a list of messages, not a string"),
    "one message": (USER, "messages must be a list of messages, not an object"),
    "a string in the list": ([USER, "hi"], "messages[1] must be an object"),
    "no role": ([{"content": "x"}], "messages[0] has no role"),
    "unknown role": (
        [{"role": "function", "content": "x"}],
        "messages[0] has the role 'function'. A role is one of system",
    ),
    "a role that is no string": ([{"role": ["user"], "content": "x"}], "messages[0] has the role ['user']"),
    "no content": ([USER, {"role": "user"}], "messages[1] has no content"),
    "content is a number": (
        [{"role": "user", "content": 5}],
        "messages[0].content must be a string or a list of parts",
    ),
    "content is an object": ([{"role": "tool", "content": {}, "tool_call_id": "c"}], "messages[0].content must be"),
    "image": (
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "u"}}],
            }
        ],
        "messages[0].content[1] is of type 'image_url', but this server reads text only, no images",
    ),
    "part in memory": ([{"role": "user", "content": [ExceptionGroup("", [OSError()])]}], ", not an ExceptionGroup"),
    "audio": ([{"role": "user", "content": [{"type": "input_audio"}]}], "text only, no audio"),
    "video": ([{"role": "user", "content": [{"type": "video_url"}]}], "text only, no video"),
    "unknown part": ([{"role": "user", "content": [{"type": "smell"}]}], "messages[0].content[0] has the type 'smell'"),
    "part without type": ([{"role": "user", "content": [{"words": "x"}]}], "messages[0].content[0] has no type"),
    "part whose type is a list": (
        [{"role": "user", "content": [{"type": []}]}],
        "messages[0].content[0] has the type []",
    ),
    "part without text": (
        [{"role": "user", "content": [{"type": "text"}]}],
        "messages[0].content[0].text must be a string, not null",
    ),
    "part that is a number": ([{"role": "user", "content": [1]}], "messages[0].content[0] must be an object"),
    "name is a number": ([{**USER, "name": 1}], "messages[0].name must be a string, not a number"),
    "reasoning is a list": ([{"role": "assistant", "content": "x", "reasoning": []}], "messages[0].reasoning must be"),
    "retired form": ([{"role": "assistant", "function_call": {}}], "messages[0] has function_call"),
    "calls are an object": ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls must be a list"),
    "call is a string": ([calls("f")], "messages[0].tool_calls[0] must be an object"),
    "call of another type": ([calls(call(type="mcp"))], "messages[0].tool_calls[0] has the type 'mcp'"),
    "custom call without input": (
        [calls({"type": "custom", "custom": {"name": "f"}})],
        "messages[0].tool_calls[0].custom.input must be a string",
    ),
    "call without function": ([calls({"id": "c"})], "messages[0].tool_calls[0].function must be an object"),
    "call without name": (
        [calls({"function": {"arguments": "{}"}})],
        "messages[0].tool_calls[0].function.name must be a name, not null",
    ),
    "call id is a number": ([calls(call(id=5))], "messages[0].tool_calls[0].id must be a string"),
    "arguments broken": (
        [USER, calls(call(), call('{"a": '))],
        "messages[1].tool_calls[1].function.arguments is not valid JSON",
    ),
    "arguments are a list": (
        [calls(call("[1]"))],
        "messages[0].tool_calls[0].function.arguments must hold a JSON object",
    ),
    "arguments are a number": ([calls(call(5))], "messages[0].tool_calls[0].function.arguments must be a string"),
    "arguments not a number": ([calls(call('{"a": NaN}'))], "NaN is not a JSON number"),
    "arguments too deep": (
        [calls(call('{"a":' * 100_000))],
        "messages[0].tool_calls[0].function.arguments is not valid",
    ),
    "arguments not json": ([calls(call({"a": {1}}))], "messages[0].tool_calls[0].function.arguments cannot be written"),
    "result without id": ([{"role": "tool", "content": "x"}], "messages[0] has no tool_call_id"),
    "result id is a number": (
        [{"role": "tool", "content": "x", "tool_call_id": 1}],
        "messages[0].tool_call_id must be",
    ),
}


@pytest.mark.parametrize(("message", "expected"), ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(message: dict[str, Any], expected: dict[str, Any]) -> None:
    before = json.dumps(message)
    assert normalize_messages([message]) == [expected]
    assert normalize_messages((USER, message)) == [USER, expected]
    assert json.dumps(message) == before


@pytest.mark.parametrize(("messages", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(messages: Any, reason: str) -> None:
    with pytest.raises(RequestError) as refusal:
        normalize_messages(messages)
    assert reason in str(refusal.value)
    assert refusal.value.field == "messages"


@cache
def gemma4_like() -> ChatTemplate:
    return ChatTemplate((Path(__file__).parent / "gemma4_like.jinja").read_text(encoding="utf-8"))


def test_replayed_call_reads_as_the_model_wrote_it() -> None:
    """The same numbers make the same tokens, so the conversation so far is found in the prefix cache."""
    template = gemma4_like()
    messages = normalize_messages([USER, calls(call('{"a": 1.50, "b": 1e3, "c": -0.0, "d": 12345678901234567890}'))])
    assert "call:f{a:1.50,b:1e3,c:-0.0,d:12345678901234567890}" in template.render(messages).text
    assert json.loads(json.dumps(messages))[1]["tool_calls"][0]["function"]["arguments"]["a"] == 1.5
    long = "1" * 5000  # digits: more than Python converts
    assert f"call:f{{n:-{long}}}" in template.render(normalize_messages([USER, calls(call(f'{{"n": -{long}}}'))])).text


CITIES = {"a": "Lisbon", "b": "Paris", "c": "Rome"}


def result(call_id: str | None, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **fields}


def weather_calls(ids: str = "abc") -> dict[str, Any]:
    return calls(*(call({"city": CITIES[call_id]}, id=call_id) for call_id in ids))


def weather_of(*ids: str) -> list[dict[str, Any]]:
    return [result(call_id, f"weather of {CITIES[call_id]}") for call_id in ids]


def rendered(*messages: dict[str, Any]) -> str:
    return gemma4_like().render(normalize_messages([USER, *messages])).text


@pytest.mark.parametrize("order", [*itertools.permutations("abc")], ids="".join)
def test_results_are_read_in_the_order_of_their_calls(order: tuple[str, ...]) -> None:
    """The template writes names and no ids: a model reads the first result as that of the first call."""
    expected = rendered(weather_calls(), *weather_of("a", "b", "c"))
    assert rendered(weather_calls(), *weather_of(*order)) == expected
    # Also where several messages make up the turn.
    together = rendered(weather_calls("a"), weather_calls("bc"), *weather_of("a", "b", "c"))
    assert rendered(weather_calls("a"), weather_calls("bc"), *weather_of(*order)) == together
    # Each row has calls of its own, though their ids may be the same.
    twice = rendered(weather_calls(), *weather_of("a", "b", "c"), USER, weather_calls("ba"), *weather_of("b", "a"))
    assert twice == rendered(weather_calls(), *weather_of(*order), USER, weather_calls("ba"), *weather_of("a", "b"))


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ([result("x", "1"), result("b", "2"), result("y", "3"), result("a", "4")], "4213"),  # of no call: last
        ([result("c", "1"), result("b", "2")], "21"),  # one call has no result
        ([result("b", "1"), result("a", "2"), result("b", "3")], "213"),  # two of one call
        ([result("b", "1"), result(None, "2", name="f"), result("a", "3")], "123"),  # paired by name, or by place
        ([result("x", "1"), result("y", "2")], "12"),
    ],
)  # fmt: skip
def test_results_that_name_no_call_keep_their_order(sent: list[dict[str, Any]], read: str) -> None:
    normalized = normalize_messages([USER, weather_calls(), *sent])
    assert "".join(message["content"] for message in normalized[2:]) == read


def test_calls_that_share_an_id_take_results_in_turn() -> None:
    shared = calls(call(id="x"), call(id="y"), call(id="x"))
    normalized = normalize_messages([USER, shared, result("x", "1"), result("x", "3"), result("y", "2")])
    assert [message["content"] for message in normalized[2:]] == ["1", "2", "3"]


def test_what_is_wrong_with_a_result_is_named_where_it_was_sent() -> None:
    messages = [USER, weather_calls(), result("b", "2"), result("a", [{"type": "smell"}])]
    with pytest.raises(RequestError, match=r"^messages\[3\]\.content\[0\] has the type 'smell'"):
        normalize_messages(messages)


def test_escapes_in_arguments() -> None:
    """Pairs are characters; halves, which JSON allows, are refused."""
    (_, message) = normalize_messages([USER, calls(call('{"a": "\\ud83d\\ude42 \\\\ud83d"}'))])
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": "🙂 \\ud83d"}
    for arguments in ('{"a": "\\ude42\\ud83d"}', '{"\\uD800": 1}', {"a": ["\ud800"]}):
        with pytest.raises(RequestError, match=r"^messages\[1\]\.tool_calls\[0\]\.function\.arguments holds \\ud"):
            normalize_messages([USER, calls(call(arguments))])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["user", "text"]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "type", "function", "x"]
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])


@given(
    messages=st.lists(
        st.builds(
            lambda fields, role: {**fields, "role": role},
            st.dictionaries(FIELDS, JSON_VALUES, max_size=4),
            ROLES | JSON_VALUES,
        ),
        max_size=3,
    )
    | JSON_VALUES
)
def test_any_json_is_accepted_or_refused(messages: Any) -> None:
    try:
        normalized = normalize_messages(messages)
    except RequestError as refusal:
        field = refusal.field
        assert field == "messages"
    else:
        known = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content"}
        assert all(message.keys() <= known for message in normalized)
        assert normalize_messages(normalized) == normalized
