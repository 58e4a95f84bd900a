"""Structural tags: what they let a model write, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from facet.chat.structural_tags import structural_tag_grammar
from facet.errors import RequestError
from facet.sampling import GrammarCompiler
from facet.sampling.grammar_walker import GrammarWalker
from tests.sampling.test_grammars import EOS, VOCAB_SIZE, allowed, letter
from tests.tokens.gemma_like import write_tokenizer_folder

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
AS_SCHEMA = {"type": "json_schema", "json_schema": SCHEMA}
TAG = {"type": "tag", "begin": "<f>", "content": AS_SCHEMA, "end": "</f>"}
OLD = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
LETTER = {"type": "grammar", "grammar": 'root ::= "a"'}
DIGITS = {"type": "regex", "pattern": "[0-9]+"}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    folder: Path = write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))
    return GrammarCompiler(folder, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])


def of(format: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": format}


@pytest.mark.parametrize(
    ("tag", "whole", "impossible"),
    [
        (OLD, 'hi <f>{"a":1}</f> so', '<f>{"b'),
        (OLD, "nothing <g", '<f>{"a": '),
        (of({"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG]}), 'x<f>{"a":2}</f>', "<fa"),
        (of({"type": "sequence", "elements": [{"type": "const_string", "value": "a"}, DIGITS]}), "a12", "ab"),
        (of({"type": "or", "elements": [TAG, DIGITS]}), '<f>{"a":-1}</f>', "<f>1"),
        (of({"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": [">", "!"]}), "<who!", "w"),
        (of({"type": "tags_with_separator", "separator": ",", "tags": [TAG]}), '<f>{"a":1}</f>', '<f>{"a":1}</f>;'),
        (of({"type": "repeat", "min": 1, "max": 2, "content": LETTER}), "aa", "aaa"),
        (of({"type": "dispatch", "rules": [["x", DIGITS]]}), "ax1b", "xa"),
        (of({"type": "star", "content": {"type": "const_string", "value": "ab"}}), "abab", "aba!"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_may_be_written(compiler: GrammarCompiler, tag: Any, whole: str, impossible: str) -> None:
    spec = structural_tag_grammar(tag)

    def walk(text: str) -> GrammarWalker:
        walker = GrammarWalker(spec, compiler.start(spec).result(), vocab_size=VOCAB_SIZE, stop_token_ids=[EOS])
        for character in text:
            assert letter(character) in allowed(walker), (text, character)
            walker.accept(letter(character))
        return walker

    assert EOS in allowed(walk(whole))
    assert letter(impossible[-1]) not in allowed(walk(impossible[:-1]))


def nested(depth: int) -> dict[str, Any]:
    return DIGITS if depth == 0 else {"type": "plus", "content": nested(depth - 1)}


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        ({}, "format must be an object"),
        ({"structures": 1}, "must be a list of objects"),
        ({"structures": [{"begin": "a", "schema": {"not": {}}, "end": "b"}], "triggers": ["a"]}, "schema with not"),
        (of({"type": "token", "token": 4}), "Tokens cannot be named here"),
        (of({**TAG, "begin": {"type": "token", "token": 4}}), "format.begin must be text"),
        (of({**TAG, "end": []}), "format.end must be text"),
        (of({"type": "json_schema", "json_schema": SCHEMA, "style": "qwen_xml"}), "Only 'json'"),
        (of({"type": "json_schema", "json_schema": SCHEMA, "any_order": True}), "'any_order', which is not supported"),
        (of({"type": "qwen_xml_parameter", "json_schema": SCHEMA}), "which is not supported"),
        (of({"type": "or", "elements": []}), "list of one or more"),
        (of({"type": "triggered_tags", "triggers": ["a"], "tags": [DIGITS]}), "no tag"),
        (of({"type": "repeat", "min": 0, "max": 10**9, "content": DIGITS}), "must be a number up to"),
        (of({"type": "dispatch", "rules": [["a"]]}), "list of pairs"),
        (of({"type": "regex", "pattern": "(?=a)b"}), "structured_outputs"),
        (of(nested(70)), "nested more than 64 deep"),
    ],
    ids=str,
)
def test_what_is_refused(tag: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        structural_tag_grammar(tag)
    assert caught.value.field == "structured_outputs"
