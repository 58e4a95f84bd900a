"""Arguments written in Gemma's syntax and read back; any tokens at all, read without a loss."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from facet.chat.call_syntax import QUOTE, NumberText, render_call_arguments
from facet.tokens import Tokenizer
from tests.chat.replies import (
    Assembled,
    encode_characters,
    encode_reply,
    is_half_a_string,
    is_whole,
    make_parser,
    read_reply,
)
from tests.tokens.gemma_like import build_gemma_like

TOKENIZER = Tokenizer(build_gemma_like())

# Every character UTF-8 can write, with those that mean something in a call more often than chance would have it.
CHARACTERS = st.one_of(st.sampled_from("\"'`{}[](),:=;\\\n\t<|> atrue0-"), st.characters(codec="utf-8"))
TEXTS = st.text(CHARACTERS, max_size=20).filter(lambda text: QUOTE not in text)
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True).filter(
    str.isascii
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS.map(NumberText) | TEXTS,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(TEXTS, values, max_size=4),
    max_leaves=15,
)


def json_text(value: Any) -> str:
    """Compact JSON with numbers as they are spelled."""
    if isinstance(value, NumberText):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(str(key))}:{json_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def encode_call(name: str, arguments: dict[str, Any], *, by_character: bool) -> list[int]:
    """Text of the arguments is encoded apart from the delimiters, so that none of it can become a token of control."""
    parts: list[Any] = [f"<|tool_call>call:{name}"]
    for i, text in enumerate(render_call_arguments(arguments).split(QUOTE)):
        looks_like_control = "<" in text or by_character
        parts += [*([QUOTE] if i else []), {"text": text} if looks_like_control else text]
    return encode_reply(TOKENIZER, [*parts, "<tool_call|>"])


@given(
    arguments=st.dictionaries(TEXTS, VALUES, max_size=5),
    name=st.from_regex(r"[A-Za-z_][\w.-]{0,20}", fullmatch=True),
    by_character=st.booleans(),
)
@example(arguments={"a": "}", "b": ["]", ""], "": {"c,d": NumberText("-0.0e-00")}}, name="f", by_character=False)
def test_arguments_are_read_back_unchanged(arguments: dict[str, Any], name: str, by_character: bool) -> None:
    parser = make_parser(TOKENIZER)
    streamed = Assembled()
    for token_id in encode_call(name, arguments, by_character=by_character):
        streamed.add(parser.push(token_id))
    assert streamed.calls == [[name, json_text(arguments)]]
    assert not streamed.content
    assert not parser.finish()


@given(arguments=st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), data=st.data())
def test_arguments_cut_off_anywhere_are_the_beginning_of_the_whole(
    arguments: dict[str, Any], data: st.DataObject
) -> None:
    token_ids = encode_call("f", arguments, by_character=False)
    brace = len(encode_reply(TOKENIZER, "<|tool_call>call:f{"))
    num_tokens = data.draw(st.integers(brace, len(token_ids)))
    cut = read_reply(make_parser(TOKENIZER), token_ids[:num_tokens], is_complete=False)
    [[name, beginning]] = cut.calls
    assert name == "f"
    assert json_text(arguments).startswith(beginning)
    assert not cut.content
    closed = read_reply(make_parser(TOKENIZER), token_ids[:num_tokens], is_complete=True)
    assert all(is_whole(text) or is_half_a_string(text) for _, text in closed.calls)


WORDS = [f"{letter}Q{number:02d}" for letter in "KVXZ" for number in range(12)]
MARKERS = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<turn|>", "<|turn>", "<eos>", QUOTE]
CALL_OPENING = ["<|tool_call>", "call:", "call:f{", "f(", "{", QUOTE]
SIGNS = [
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    "=",
    ";",
    '"',
    "'",
    "`",
    " ",
    "\n",
    "call:",
    "thought\n",
    "1",
    "null",
    "a:[],",
]


@settings(max_examples=400)
@given(
    opening=st.sampled_from([[], ["<|tool_call>"], ["<|tool_call>", "call:f{"], ["<|tool_call>", "call:f{", "a", ":"]]),
    parts=st.lists(st.sampled_from([*MARKERS, *CALL_OPENING, *SIGNS]) | st.integers(0, 3), max_size=40),
    data=st.data(),
)
def test_no_tokens_are_too_wild_and_no_word_is_lost(
    opening: list[str], parts: list[str | int], data: st.DataObject
) -> None:
    words = iter(WORDS)
    texts = opening + [next(words) if isinstance(part, int) else part for part in parts]
    token_ids: list[int] = []
    for text in texts:
        control_id = TOKENIZER.token_to_id(text)
        is_control = control_id is not None and control_id in TOKENIZER.special_ids
        token_ids += [control_id] if is_control and control_id is not None else encode_characters(TOKENIZER, text)
    options = {
        "tools_enabled": data.draw(st.sampled_from([True, True, False])),
        "starts_in_thought": data.draw(st.booleans()),
    }
    is_complete = data.draw(st.booleans())
    reply = read_reply(make_parser(TOKENIZER, **options), token_ids, is_complete=is_complete)
    said = " ".join([reply.reasoning, reply.content, *(part for call in reply.calls for part in call)])
    if options["tools_enabled"] and not is_complete and "<|tool_call>" in texts:
        # A call that is cut off before it says what it calls says nothing.
        texts = texts[: -texts[::-1].index("<|tool_call>")]
    assert [word for word in texts if word in WORDS and word not in said] == []
    finished = reply.calls if is_complete else reply.calls[:-1]
    assert all(is_whole(arguments) or is_half_a_string(arguments) for _, arguments in finished)


@given(token_ids=st.lists(st.integers(0, TOKENIZER.vocab_size + 3), max_size=80), is_complete=st.booleans())
def test_any_token_ids_are_read(token_ids: list[int], is_complete: bool) -> None:
    reply = read_reply(make_parser(TOKENIZER), token_ids, is_complete=is_complete)
    for text in (reply.reasoning, reply.content, *(arguments for _, arguments in reply.calls)):
        text.encode("utf-8")
    if is_complete:
        assert all(is_whole(arguments) or is_half_a_string(arguments) for _, arguments in reply.calls)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, "{}"),
        ({"a": [1, 2.5, True, None, "x"]}, '{a:[1,2.5,true,null,<|"|>x<|"|>]}'),
        ({"a b": {"c": ()}}, '{<|"|>a b<|"|>:{c:[]}}'),
        ({"n": NumberText("1.50e+3")}, "{n:1.50e+3}"),
    ],
)
def test_rendering(value: Any, expected: str) -> None:
    assert render_call_arguments(value) == expected


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing in it is escaped"):
        render_call_arguments({"a": f"x{QUOTE}"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        render_call_arguments({"a": float("nan")})
    with pytest.raises(TypeError, match="set is not a JSON value"):
        render_call_arguments({"a": {1}})
