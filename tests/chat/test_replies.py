"""Replies read from tokens: every case of reply_cases.jsonl whole, character by character, and cut at every token."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from facet.chat.deltas import ToolCallStart
from facet.chat.formats import find_thought
from facet.chat.replies import make_reply_parser
from facet.sampling_params import SamplingParams
from facet.tokens import Tokenizer
from tests.chat.replies import Assembled, encode_reply, is_half_a_string, is_whole, make_parser, read_reply
from tests.tokens.gemma_like import build_gemma_like

CASES: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "reply_cases.jsonl").read_text(encoding="utf-8").splitlines()
]
EXPECTED_FIELDS = {"name", "reply", "reasoning", "content", "calls", "cut", "half", "stop_string"}

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
each_spelling = pytest.mark.parametrize("by_character", [False, True], ids=["tokens", "characters"])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_gemma_like())


def parser_options(case: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in case.items() if field not in EXPECTED_FIELDS}


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 120
    assert len({case["name"] for case in CASES}) == len(CASES)


@each_spelling
@each_case
def test_case(tokenizer: Tokenizer, case: dict[str, Any], by_character: bool) -> None:
    parser = make_parser(tokenizer, **parser_options(case))
    token_ids = encode_reply(tokenizer, case["reply"], by_character=by_character)
    reply = read_reply(parser, token_ids, is_complete=not case.get("cut", False))
    assert reply.reasoning == case.get("reasoning", "")
    assert reply.content == case.get("content", "")
    assert reply.calls == case.get("calls", [])
    assert parser.stop_string == case.get("stop_string")
    if not case.get("cut", False):
        assert all(is_whole(arguments) for _, arguments in reply.calls) != case.get("half", False)


@each_case
def test_what_is_streamed_is_final(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    """After any token, what was handed out is the beginning of the whole, and cutting there raises nothing."""
    token_ids = encode_reply(tokenizer, case["reply"], by_character=True)
    whole = read_reply(make_parser(tokenizer, **parser_options(case)), token_ids, is_complete=not case.get("cut"))
    parser = make_parser(tokenizer, **parser_options(case))
    streamed = Assembled()
    for num_tokens, token_id in enumerate(token_ids, start=1):
        streamed.add(parser.push(token_id))
        assert streamed.is_prefix_of(whole)
        for is_complete in (False, True):
            cut = read_reply(
                make_parser(tokenizer, **parser_options(case)), token_ids[:num_tokens], is_complete=is_complete
            )
            assert streamed.is_prefix_of(cut)
            if is_complete:
                assert all(is_whole(arguments) or is_half_a_string(arguments) for _, arguments in cut.calls)


def test_name_comes_before_long_arguments_do(tokenizer: Tokenizer) -> None:
    parser = make_parser(tokenizer)
    token_ids = encode_reply(tokenizer, '<|tool_call>call:write{text:<|"|>one two three four')
    reply = Assembled()
    for token_id in token_ids:
        reply.add(parser.push(token_id))
    assert reply.calls == [["write", '{"text":"one two three four']]


def test_call_ids_are_random_unless_given(tokenizer: Tokenizer) -> None:
    token_ids = encode_reply(tokenizer, "<|tool_call>call:f{}<tool_call|>" * 50)
    parser = make_reply_parser(tokenizer, SamplingParams(), tools_enabled=True)
    starts = [delta for token_id in token_ids for delta in parser.push(token_id) if isinstance(delta, ToolCallStart)]
    assert len({start.call_id for start in starts}) == 50


def test_tokens_after_a_stop_string_say_nothing(tokenizer: Tokenizer) -> None:
    parser = make_parser(tokenizer, stop=["."])
    reply = read_reply(parser, encode_reply(tokenizer, "one. two. three"), is_complete=True)
    assert reply.content == "one"
    assert parser.push(tokenizer.encode("x")[0]) == []
    assert parser.finish() == []


def test_min_tokens_count_thoughts(tokenizer: Tokenizer) -> None:
    thought = encode_reply(tokenizer, "<|channel>thought\nhm\n<channel|>")
    token_ids = thought + encode_reply(tokenizer, ".a.")
    for min_tokens, content in ((len(thought) + 1, ""), (len(thought) + 2, ".a")):
        parser = make_parser(tokenizer, stop=["."], min_tokens=min_tokens)
        assert read_reply(parser, token_ids, is_complete=True).content == content
        assert parser.stop_string == "."


@pytest.mark.parametrize(
    ("reply", "num_characters"),
    [
        ('<|tool_call>{"name":"f","arguments":' + "[" * 5000, 5000),
        ("<|tool_call>call:f{a:" + "[" * 5000 + '<|"|>' + "]" * 5000, 10_000),
        ("<|tool_call>call:f{" + "{" * 5000 + "a:1", len('{"a":1}')),
        ("<|tool_call>" + "call:(" * 2000, 12_000),
        ("<|channel>" + "thought" * 2000, 14_000),
    ],
    ids=["json", "unclosed", "braces", "names", "channel"],
)
def test_long_nonsense_is_read_in_time(tokenizer: Tokenizer, reply: str, num_characters: int) -> None:
    token_ids = encode_reply(tokenizer, reply)
    started = time.process_time()
    whole = read_reply(make_parser(tokenizer), token_ids, is_complete=True)
    said = whole.reasoning + whole.content + "".join(arguments for _, arguments in whole.calls)
    assert len(said) >= num_characters
    assert time.process_time() - started < 5  # linear: well under a second


def test_model_without_control_tokens_has_only_content() -> None:
    description = json.loads(build_gemma_like().to_str())
    for token in description["added_tokens"]:
        token["content"] = token["content"].replace("|", "!")
    description["model"]["vocab"] = {
        (token.replace("|", "!") if token.startswith("<") else token): token_id
        for token, token_id in description["model"]["vocab"].items()
    }
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(description)))
    assert tokenizer.token_to_id("<|channel>") is None
    text = "<|channel>thought\nhm<channel|>call:f{a:1} STOP"
    for starts_in_thought in (False, True):
        parser = make_parser(tokenizer, stop=["STOP"], starts_in_thought=starts_in_thought)
        reply = read_reply(parser, encode_reply(tokenizer, text), is_complete=True)
        assert reply == Assembled(content="<|channel>thought\nhm<channel|>call:f{a:1} ")
        assert parser.stop_string == "STOP"
        assert parser.push(5) == []
    assert find_thought(tokenizer, encode_reply(tokenizer, text)) is None


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<bos><|turn>user\nhi<turn|>\n<|turn>model\n", False),
        ("<|turn>model\n<|channel>thought\n", True),
        ("<|turn>model\n<|channel>thought\n<channel|>", False),
        ("<|turn>user\n<|channel>thought\n<turn|>\n<|turn>model\n", False),
        ("", False),
    ],
)
def test_prompt_that_ends_in_a_thought(tokenizer: Tokenizer, prompt: str, expected: bool) -> None:
    thought = find_thought(tokenizer, encode_reply(tokenizer, prompt))
    assert thought is not None
    assert thought.is_open is expected
