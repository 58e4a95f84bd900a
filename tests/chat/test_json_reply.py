"""Calls written as JSON in replies: every case whole, in any parts, and cut anywhere."""

import json
import time
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.chat.json_call_reader import Found, JsonCall, JsonCallReader
from facet.chat.replies import make_reply_parser
from facet.sampling_params import SamplingParams
from facet.tokens import Tokenizer
from tests.chat.replies import encode_reply, read_reply
from tests.tokens.gemma_like import GEMMA3_TOKENS, build_gemma_like

NAMES = ("f", "get_weather")
F = '{"name": "f", "parameters": {"a": 1}}'
F_CALL = ("f", '{"a":1}')
PRETTY = json.dumps({"name": "get_weather", "parameters": {"city": "Paris", "days": [1, 2]}}, indent=2)
PRETTY_CALL = ("get_weather", '{"city":"Paris","days":[1,2]}')


class Case(NamedTuple):
    reply: str
    calls: list[tuple[str, str]]
    content: str = ""


def text(reply: str) -> Case:
    """No call is in it."""
    return Case(reply, [], reply)


CASES: dict[str, Case] = {
    "text": text("The wind is light."),
    "nothing": Case("", []),
    "white space": text(" \n\n "),
    "text opens with spaces": text("  Hi\n"),
    "one call": Case(F, [F_CALL]),
    "white space around": Case(f"\n {F}\n\n", [F_CALL]),
    "over several lines": Case(PRETTY, [PRETTY_CALL]),
    "no arguments": Case('{"name":"f","parameters":{}}', [("f", "{}")]),
    "openai's word for them": Case('{"name": "f", "arguments": {"a": 1}}', [F_CALL]),
    "a list": Case(f"[{F}, {PRETTY}]", [F_CALL, PRETTY_CALL]),
    "a list of one": Case(f"[\n {F}\n]", [F_CALL]),
    "one after the other": Case(f"{F}\n{PRETTY}{F}", [F_CALL, PRETTY_CALL, F_CALL]),
    "one after the other with commas": Case(f"{F},\n{F};", [F_CALL, F_CALL]),
    "code block of json": Case(f"```json\n{PRETTY}\n```", [PRETTY_CALL]),
    "code block of tools": Case(f"```tool_code\n{F}\n```\n", [F_CALL]),
    "code block without a language": Case(f"```\n[{F}]```", [F_CALL]),
    "code block on one line": Case(f"```json {F} ```", [F_CALL]),
    "code block with two calls": Case(f"```tool_calls\n{F}\n{F}\n```", [F_CALL, F_CALL]),
    "two code blocks": Case(f"```json\n{F}\n```\n```json\n{F}\n```", [F_CALL, F_CALL]),
    "code block that does not end": Case(f"```json\n{F}\n``", [F_CALL]),
    "words before": Case(f"Let me see.\n\n{F}", [F_CALL], "Let me see.\n\n"),
    "words before a code block": Case(f"Okay.\n```json\n{PRETTY}\n```", [PRETTY_CALL], "Okay.\n"),
    "words after": Case(f"{F}\nDone.", [F_CALL], "Done."),
    "words after a code block": Case(f"```json\n{F}\n```\n\nDone.\n", [F_CALL], "Done.\n"),
    "words in the block": Case(f"```json\n{F}\nso\n```\nx", [F_CALL], "so\n```\nx"),
    "in the middle of a line": text(f"Write {F} to call."),
    "in quotes": text(f"`{F}`"),
    "brackets in strings": Case('{"name": "f", "parameters": {"a": "}]\\"{ \\\\"}}', [("f", '{"a":"}]\\"{ \\\\"}')]),
    "strings over several lines": Case('{"name": "f", "parameters": {"a": "x\ny"}}', [("f", '{"a":"x\\ny"}')]),
    "other scripts": Case('{"name": "f", "parameters": {"a": "東京 🙂"}}', [("f", '{"a":"東京 🙂"}')]),
    "half a pair": Case('{"name": "f", "parameters": {"a": "\\ud83d"}}', [("f", '{"a":"\\ud83d"}')]),
    "last brackets forgotten": Case('{"name": "f", "parameters": {"a": [1', [("f", '{"a":[1]}')]),
    "ends inside a string": Case('{"name": "f", "parameters": {"a": "x', [], '{"name": "f", "parameters": {"a": "x'),
    "unknown tool": text('{"name": "g", "parameters": {}}'),
    "one of them unknown": text(f'[{F}, {{"name": "g", "parameters": {{}}}}]'),
    "one field too many": text('{"name": "f", "parameters": {}, "x": 1}'),
    "no parameters": text('{"name": "f"}'),
    "a list for parameters": text('{"name": "f", "parameters": [1]}'),
    "a list for the name": text('{"name": [], "parameters": {}}'),
    "no JSON": text('{"name": f, "parameters": {}}'),
    "numbers that are none": text('{"name": "f", "parameters": {"a": NaN}}'),
    "numbers too large": text('{"name": "f", "parameters": {"a": 1e999}}'),
    "brackets that do not match": text('{"name": ]}'),
    "other JSON": text('{"a": [1, {"b": 2}]}'),
    "a list of other things": text("[1, 2]\n[x](y)"),
    "far from its bracket": text("{" + " " * 80 + F[1:]),
    "other JSON, then a call": Case('{"a": 1}\n' + F, [F_CALL], '{"a": 1}\n'),
    "block of other JSON": text(f'```json\n{{"a": 1}}\n{F}\n```\n'),
    "block of another language": text(f"```python\n{F}\n```\nx"),
    "a call after such a block": Case(f"```sh\nls\n```\n{F}", [F_CALL], "```sh\nls\n```\n"),
    "quotes at the beginning": text("``x`` and `y`\n```"),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_gemma_like(control_tokens=GEMMA3_TOKENS))


def make_parser(tokenizer: Tokenizer, **options: Any) -> Any:
    first = options.pop("calls_come_first", False)
    return make_reply_parser(
        tokenizer,
        SamplingParams(max_tokens=None, **options),
        tools_enabled=True,
        tool_names=NAMES,
        calls_come_first=first,
    )


def split(found: list[Found]) -> tuple[list[tuple[str, str]], str]:
    calls = [(item.name, item.arguments) for item in found if isinstance(item, JsonCall)]
    return calls, "".join(item for item in found if isinstance(item, str))


@each_case
def test_case(tokenizer: Tokenizer, case: Case) -> None:
    for by_character in (False, True):
        token_ids = encode_reply(tokenizer, case.reply, by_character=by_character)
        reply = read_reply(make_parser(tokenizer), token_ids, is_complete=True)
        assert [tuple(call) for call in reply.calls] == case.calls
        assert reply.content == case.content
        assert len(set(reply.call_ids)) == len(case.calls)
        assert all(json.loads(arguments) is not None for _, arguments in case.calls)


@each_case
def test_what_is_streamed_is_final(case: Case) -> None:
    """After any character, what was handed out is the beginning of the whole; cutting there loses no text."""
    reader, streamed = JsonCallReader(NAMES), []
    for place, character in enumerate(case.reply):
        streamed += reader.take(character)
        calls, content = split(streamed)
        assert case.calls[: len(calls)] == calls
        assert case.content.startswith(content)
        cut = JsonCallReader(NAMES)
        calls_then, content_then = split(cut.take(case.reply[: place + 1]) + cut.end(is_complete=False))
        assert calls_then == calls
        assert content_then.startswith(content)
        if not calls:
            assert content_then == case.reply[: place + 1]


PIECES = st.sampled_from(
    [*(case.reply for case in CASES.values()), "\n", "```", "`", "{", "[", '{"name"', " ", "x", ","]
)


@given(pieces=st.lists(PIECES, max_size=5), sizes=st.lists(st.integers(1, 9), max_size=40))
def test_any_parts_say_the_same(pieces: list[str], sizes: list[int]) -> None:
    text = "".join(pieces)
    whole, parted = JsonCallReader(NAMES), JsonCallReader(NAMES)
    expected = split(whole.take(text) + whole.end(is_complete=True))
    found, place = [], 0
    for size in sizes:
        found += parted.take(text[place : place + size])
        place += size
    assert split(found + parted.take(text[place:]) + parted.end(is_complete=True)) == expected
    if not expected[0]:
        assert expected[1] == text


def test_calls_that_must_come_first(tokenizer: Tokenizer) -> None:
    for reply, calls, content in (
        (f"{F}\n{F} x", 2, "x"),
        (f"Okay.\n{F}", 0, f"Okay.\n{F}"),
        (f"{F} x\n{F}", 1, f"x\n{F}"),
    ):
        read = read_reply(
            make_parser(tokenizer, calls_come_first=True), encode_reply(tokenizer, reply), is_complete=True
        )
        assert len(read.calls) == calls
        assert read.content == content


def test_stop_strings_end_a_call_too(tokenizer: Tokenizer) -> None:
    parser = make_parser(tokenizer, stop=["par"])
    reply = read_reply(parser, encode_reply(tokenizer, "Well,\n" + F), is_complete=True)
    assert reply.content == 'Well,\n{"name": "f", "'
    assert not reply.calls
    assert parser.stop_string == "par"
    assert parser.push(5) == []
    assert parser.finish() == []


def test_control_tokens_are_no_part_of_a_call(tokenizer: Tokenizer) -> None:
    reply = read_reply(make_parser(tokenizer), encode_reply(tokenizer, f"{F}<end_of_turn>"), is_complete=True)
    assert [tuple(call) for call in reply.calls] == [F_CALL]
    assert not reply.content


@pytest.mark.parametrize(
    "reply",
    [
        *("[" * 20_000, '{"name":' + "[" * 20_000, '{"name":"' + '\\"' * 20_000),
        *("\n" * 20_000, "```json" + " " * 20_000, "`" * 20_000),
    ],
)
def test_long_nonsense_is_read_in_time(reply: str) -> None:
    reader, started = JsonCallReader(NAMES), time.process_time()
    found: list[Found] = []
    for character in reply:
        found += reader.take(character)
    assert split(found + reader.end(is_complete=True)) == ([], reply)
    assert time.process_time() - started < 5
