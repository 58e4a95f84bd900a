"""Which chunks count, what they say, and which streams are no answer."""

import json
from typing import Any

import pytest

from facet.bench.answers import AnswerReader, ChatReader, CompletionReader, NoTokensError, StreamError, error_message
from facet.bench.http_client import BadAnswerError, EndedEarlyError


def feed(reader: AnswerReader, *events: Any) -> AnswerReader:
    """One event a second, from second 1 on."""
    for second, event in enumerate(events, start=1):
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        reader.on_body(b"data: " + data + b"\n\n", float(second))
    return reader


def text(value: str | None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": value, "logprobs": None, "finish_reason": None, **fields}], "id": "x"}


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}], "usage": None}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}}


def test_a_completion() -> None:
    reader = feed(
        CompletionReader(),
        text("a", token_ids=[5], prompt_token_ids=[1, 2]),
        text("", token_ids=[6]),
        text(None),
        text("b", finish_reason="length"),
        USAGE,
        b"[DONE]",
    )
    reader.end(9.0)
    assert reader.chunk_times == [1.0, 2.0, 3.0, 4.0]  # chunks without text too, the usage not
    assert (reader.text, reader.token_ids) == ("ab", [5, 6])
    assert reader.usage is not None
    assert (reader.usage.prompt_tokens, reader.usage.completion_tokens) == (7, 9)


def test_usage_beside_the_last_token_and_on_every_chunk() -> None:
    reader = feed(
        CompletionReader(),
        {**text("a"), "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
        {
            **text("b", finish_reason="stop"),
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 1},
            },
        },
    )
    reader.end(9.0)
    assert len(reader.chunk_times) == 2
    assert reader.usage is not None
    assert reader.usage.completion_tokens == 2
    assert reader.usage.prompt_tokens_details is not None
    assert reader.usage.prompt_tokens_details.cached_tokens == 1


def test_a_chat() -> None:
    reader = feed(
        ChatReader(),
        delta(role="assistant", content=""),  # no token in it
        delta(reasoning="hm"),
        delta(reasoning_content="hm"),
        delta(content="Hello"),
        delta(content=""),
        delta(content=" there"),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        USAGE,
        b"[DONE]",
    )
    reader.end(9.0)
    assert reader.chunk_times == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert reader.text == "Hello there"


def test_a_first_token_that_has_no_text_counts() -> None:
    reader = feed(ChatReader(), delta(role="assistant", content=None), delta(content=""), delta(content="x"))
    assert reader.chunk_times == [2.0, 3.0]
    reader = feed(ChatReader(), delta(role="assistant", content="at once"))
    assert reader.chunk_times == [1.0]


def test_tool_calls_are_put_together() -> None:
    def call(index: int, **fields: Any) -> dict[str, Any]:
        return delta(tool_calls=[{"index": index, **fields}])

    reader = feed(
        ChatReader(),
        call(0, id="c0", type="function", function={"name": "look", "arguments": ""}),
        call(0, function={"arguments": '{"a":'}),
        call(0, function={"arguments": "1}"}),
        call(1, id="c1", function={"name": "go", "arguments": "{}"}),
    )
    assert reader.calls == [("c0", "look", '{"a":1}'), ("c1", "go", "{}")]
    assert len(reader.chunk_times) == 4
    for index in (5, -1):
        with pytest.raises(BadAnswerError, match=f"index {index}"):
            feed(ChatReader(), call(index))


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([text("a"), text("b")], EndedEarlyError),
        ([text("a"), USAGE], EndedEarlyError),
        ([], EndedEarlyError),
        ([b"[DONE]"], NoTokensError),
        ([USAGE, b"[DONE]"], NoTokensError),
        ([text("a"), b'{"choices": [{"text": '], BadAnswerError),
        ([b"<html>"], BadAnswerError),
        ([b'{"choices": [{"text": 5}]}'], BadAnswerError),
        ([text("a"), {"error": {"message": "out of memory", "code": 500}}], StreamError),
    ],
    ids=str,
)
def test_streams_that_are_no_answer(events: list[Any], kind: type[Exception]) -> None:
    reader = CompletionReader()
    with pytest.raises(kind):
        feed(reader, *events).end(9.0)


def test_a_finish_reason_is_an_end_too() -> None:
    feed(CompletionReader(), text("a", finish_reason="stop")).end(9.0)


def test_a_last_event_without_its_blank_line() -> None:
    reader = feed(CompletionReader(), text("a"))
    reader.on_body(b"data: [DONE]", 5.0)
    reader.end(6.0)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"error": {"message": "no room", "code": 400}}, "no room"),
        ({"object": "error", "message": "no\nroom"}, "no room"),
        ({"error": "no room"}, "no room"),
        ("no room", "no room"),
        ({"detail": "x"}, "{'detail': 'x'}"),
        ([1], "[1]"),
    ],
    ids=str,
)
def test_the_words_of_an_error(error: Any, message: str) -> None:
    assert error_message(error) == message
