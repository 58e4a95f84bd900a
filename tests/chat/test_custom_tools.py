"""Custom tools: what is declared, what may be written, and how the text comes back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.chat.custom_tools import InputReader, whole_input
from facet.chat.formats import ReplyMarkers
from facet.chat.tool_choice import normalize_tools
from facet.chat.tool_grammar import tool_call_grammar
from facet.errors import RequestError
from facet.sampling import GrammarCompiler
from facet.sampling.grammar_walker import GrammarWalker
from facet.tokens import Tokenizer
from tests.chat.conversations import WEATHER_TOOL
from tests.sampling.test_grammars import EOS, VOCAB_SIZE, allowed
from tests.tokens.gemma_like import build_gemma_like, write_tokenizer_folder

SUM = """
// a sum of numbers
start: NUMBER (SIGN NUMBER)* -> sum
SIGN: "+" | /[-]/
NUMBER: /[0-9]/ ~ 1..3
"""
LARK = {"syntax": "lark", "definition": SUM}


def custom(name: str = "run", **format: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, "format": {"type": "grammar", "grammar": format}}}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    folder = write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))
    return GrammarCompiler(folder, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])


@pytest.mark.parametrize(
    ("tools", "call", "end"),
    [
        ([{"type": "custom", "name": "run", "format": {"type": "text"}}], 'any {"} text\n', ""),
        ([custom(syntax="regex", definition="[a-c]+")], "abc", "d"),
        ([custom("other", **LARK), WEATHER_TOOL, custom(**LARK)], "1+23-4", "+"),
        ([custom(syntax="lark", definition='start: "a" start | "b"')], "aab", "b"),
    ],
)
def test_what_may_be_written(compiler: GrammarCompiler, tools: list[Any], call: str, end: str) -> None:
    """The text is let through as it is; `end` may not be followed by the end of the text."""
    tokenizer = Tokenizer(build_gemma_like())
    markers = ReplyMarkers.find(tokenizer)
    assert markers is not None
    spec = tool_call_grammar(normalize_tools(tools, "required"), markers)
    assert spec is not None

    def walk(text: str) -> GrammarWalker:
        walker = GrammarWalker(spec, compiler.start(spec).result(), vocab_size=VOCAB_SIZE, stop_token_ids=[EOS])
        for token_id in tokenizer.encode(text, add_special_tokens=False):
            assert token_id in allowed(walker), (text, tokenizer.id_to_token(token_id))
            walker.accept(token_id)
        return walker

    assert EOS in allowed(walk(f'<|tool_call>call:run{{input:<|"|>{call}<|"|>}}<tool_call|>'))
    if end:
        begun = walk(f'<|tool_call>call:run{{input:<|"|>{call}')
        for token_id in tokenizer.encode(end, add_special_tokens=False):
            may_follow = token_id in allowed(begun)
            begun.accept(token_id)
        assert not may_follow or markers.string_delimiter not in allowed(begun)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (custom(syntax="abnf", definition="x"), "'lark' or 'regex'"),
        (custom(syntax="lark"), "a definition as text"),
        ({"type": "custom", "custom": {"name": "run", "format": {"type": "json"}}}, "'text' or 'grammar'"),
        (custom(syntax="lark", definition="start: <[7]>"), "'<[7]>' at character 7"),
        (custom(syntax="lark", definition='start: "a"\n%ignore " "'), "no directives"),
        (custom(syntax="lark", definition='rule: "a"'), "no rule 'start'"),
        (custom(syntax="regex", definition="(?=a)b"), "looking ahead"),
    ],
)
def test_what_is_refused(tool: dict[str, Any], words: str) -> None:
    markers = ReplyMarkers.find(Tokenizer(build_gemma_like()))
    assert markers is not None
    with pytest.raises(RequestError) as caught:
        tool_call_grammar(normalize_tools([tool]), markers)
    assert words in str(caught.value)
    assert caught.value.field == "tools"


@given(st.text(max_size=12), st.lists(st.integers(1, 5), max_size=12))
def test_the_text_comes_back_in_whatever_parts(text: str, sizes: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=False, separators=(",", ":"))
    reader, parts, position = InputReader(), [], 0
    for size in sizes:
        parts.append(reader.push(arguments[position : position + size]))
        position += size
    assert text.startswith("".join(parts))
    assert "".join(parts) + reader.push(arguments[position:]) == text
    assert whole_input(arguments) == text
    assert text.startswith(whole_input(arguments[:-3]))


def test_other_arguments_are_handed_on() -> None:
    assert whole_input('{"city":"Paris"}') == '{"city":"Paris"}'
