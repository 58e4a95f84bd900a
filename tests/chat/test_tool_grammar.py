"""Tools' schemas as grammars: what they let through, what they keep out, and what is refused by name."""

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.chat.answer_grammar import (
    choice_grammar,
    ebnf_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
)
from facet.chat.formats import ReplyMarkers
from facet.chat.number_ranges import integers_between, numbers_between
from facet.chat.object_rules import _names_other_than
from facet.chat.patterns import whole_match
from facet.chat.tool_choice import normalize_tools
from facet.chat.tool_grammar import call_or_answer_grammar, thought_tokens, tool_call_grammar
from facet.errors import RequestError
from facet.grammar_spec import GrammarSpec
from facet.sampling.grammar_compiler import GrammarCompiler
from facet.sampling.grammar_walker import GrammarWalker, Stage
from facet.tokens import Tokenizer
from tests.tokens.gemma_like import write_tokenizer_folder

EOS = 1
Q = '<|"|>'
Accepts = Callable[[Any, str], bool]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def markers(tokenizer: Tokenizer) -> ReplyMarkers:
    found = ReplyMarkers.find(tokenizer)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def accepts(folder: Path, tokenizer: Tokenizer, markers: ReplyMarkers) -> Accepts:
    """Whether a call of the tool f with these arguments, braces included, can be written under a schema."""
    compiler = GrammarCompiler(folder, vocab_size=512, eos_token_ids=[EOS])

    def check(schema: Any, arguments: str) -> bool:
        spec = grammar_of(schema, markers, choice="required", parallel=False)
        walker = GrammarWalker(spec, compiler.start(spec).result(), vocab_size=512, stop_token_ids=[EOS])
        for token_id in [*tokenizer.encode(f"<|tool_call>call:f{arguments}<tool_call|>"), EOS]:
            mask = walker.mask()
            assert mask is not None
            is_allowed = bool(int(mask[token_id // 32]) >> (token_id % 32) & 1)
            walker.accept(token_id)
            assert is_allowed == (walker.stage is not Stage.FAILED), "a mask and what is taken disagree"
            if not is_allowed:
                return False
        return walker.stage is Stage.ENDED

    return check


def grammar_of(schema: Any, markers: ReplyMarkers, *, choice: Any = "auto", **settings: Any) -> GrammarSpec:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    spec = tool_call_grammar(normalize_tools(tools, choice), markers, **settings)
    assert spec is not None
    return spec


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


OPTIONAL = {"type": "object", "properties": {name: {"type": "integer"} for name in "abc"}, "required": ["b"]}
MANY = {"type": "object", "properties": {name: {"type": "null"} for name in "abcdefg"}, "required": ["c", "e"]}
TREE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["value"],
}


@pytest.mark.parametrize(
    ("schema", "written", "not_written"),
    [
        ({"type": "object", "properties": {}}, ["{}"], ["{a:1}", "{ }"]),
        (OPTIONAL, ["{b:1}", "{a:1,b:2}", "{c:3,b:2,a:1}"], ["{}", "{a:1}", "{b:1,b:2}", "{b:1,}", "{d:1,b:1}"]),
        (MANY, ["{c:null,e:null}", "{a:null,c:null,d:null,e:null,g:null}"], ["{c:null}", "{e:null,c:null}", "{}"]),
        (of(s={"type": "string"}), [f"{{s:{Q}it's {{}}, \"fine\"\n{Q}}}", f"{{s:{Q}{Q}}}"], ['{s:"x"}', f"{{s:{Q}x}}"]),
        (of(s={"type": "string"}), [], [f"{{s:{Q}a<|tool_call>{Q}}}", f"{{s:{Q}a<turn|>{Q}}}", f"{{s:{Q}\x00{Q}}}"]),
        (of(s={"type": "string", "maxLength": 2}), [f"{{s:{Q}é京{Q}}}"], [f"{{s:{Q}abc{Q}}}"]),
        (of(s={"pattern": "^[a-c.]{2,17}$"}), [f"{{s:{Q}a.{Q}}}", f"{{s:{Q}{'c' * 17}{Q}}}"],
         [f"{{s:{Q}a{Q}}}", f"{{s:{Q}{'c' * 18}{Q}}}", f"{{s:{Q}ad{Q}}}"]),
        (of(s={"type": "string", "minLength": 2}), [f"{{s:{Q}abc{Q}}}"], [f"{{s:{Q}a{Q}}}"]),
        (of(s={"type": "string", "maxLength": 0}), [f"{{s:{Q}{Q}}}"], [f"{{s:{Q}a{Q}}}"]),
        (of(s={"pattern": "b"}), [f"{{s:{Q}abc{Q}}}", f"{{s:{Q}b{Q}}}"], [f"{{s:{Q}ac{Q}}}"]),
        (of(s={"pattern": "^a/b$|c$"}), [f"{{s:{Q}a/b{Q}}}", f"{{s:{Q}xc{Q}}}"], [f"{{s:{Q}a/bx{Q}}}"]),
        (of(s={"type": "string", "format": "date"}), [f"{{s:{Q}2026-02-28{Q}}}"], [f"{{s:{Q}2026-02-30{Q}}}"]),
        (of(s={"type": "string", "format": "uri"}), [f"{{s:{Q}anything{Q}}}"], []),
        (of(s={"enum": ["x y", 1, None, [1, {"k": True}]]}), [f"{{s:{Q}x y{Q}}}", "{s:[1,{k:true}]}"], ["{s:2}"]),
        (of(n={"type": "integer", "minimum": 3, "maximum": 12}), ["{n:3}", "{n:12}"], ["{n:2}", "{n:13}", "{n:03}"]),
        (of(n={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 20}), ["{n:15}"], ["{n:7}", "{n:25}"]),
        (of(n={"type": "number", "minimum": 0, "maximum": 1}), ["{n:0.25}", "{n:1.0}"], ["{n:1.5}", "{n:-0.1}"]),
        (of(n={"type": "number"}), ["{n:-1.5e-7}", "{n:0}"], ["{n:.5}", "{n:1.}", "{n:NaN}", "{n:01}"]),
        (of(v={"type": ["boolean", "null"]}), ["{v:true}", "{v:null}"], ["{v:True}", "{v:0}"]),
        (of(v={"type": "string", "nullable": True, "maxLength": 1}), ["{v:null}"], ["{v:1}"]),
        (of(a={"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}), ["{a:[1]}", "{a:[1,2]}"],
         ["{a:[]}", "{a:[1,2,3]}", "{a:[1,]}"]),
        (of(a={"type": "array", "items": {"type": "null"}}), ["{a:[]}", "{a:[null,null,null]}"], ["{a:[1]}"]),
        (of(a={"prefixItems": [{"const": 1}, {"const": 2}], "items": False}), ["{a:[1,2]}"], ["{a:[1]}"]),
        (of(v={"anyOf": [{"type": "integer"}, of(k={"type": "null"})]}), ["{v:5}", "{v:{k:null}}"], ["{v:null}"]),
        (of(v={"oneOf": [of(t={"const": "a"}), of(t={"const": "b"}, n={"type": "null"})]}),
         [f"{{v:{{t:{Q}a{Q}}}}}", f"{{v:{{t:{Q}b{Q},n:null}}}}"], [f"{{v:{{t:{Q}b{Q}}}}}"]),
        (of(v={"allOf": [of(a={"type": "null"}), of(b={"type": "null"})]}), ["{v:{a:null,b:null}}"], ["{v:{a:null}}"]),
        (of(v={"type": "integer", "anyOf": [{"maximum": 1}, {"minimum": 8}]}), ["{v:0}", "{v:9}"], ["{v:5}"]),
        (TREE, ["{value:1}", "{value:1,next:{value:2,next:null}}"], ["{next:null}", "{value:1,next:{}}"]),
        ({"$defs": {"c": {"enum": ["x"]}}, **of(v={"$ref": "#/$defs/c"})}, [f"{{v:{Q}x{Q}}}"], ["{v:1}"]),
        ({"type": "object"}, ["{}", f"{{any:[1,{{k:{Q}v{Q}}}]}}"], ["{1:2}"]),
        ({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2}, ["{}", "{x:1,y:2}"],
         ["{x:null}", "{x:1,y:2,z:3}"]),
        ({"type": "object", "properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
         ["{ab:null,a:1,abc:2}", "{b:1}"], ["{ab:1}", "{b:1,ab:null}"]),
        (of(**{"two words": {"type": "null"}, "x-y": {"type": "null"}}), [f"{{{Q}two words{Q}:null,x-y:null}}"],
         ["{two words:null,x-y:null}"]),
        (of(v={}), ["{v:null}", f"{{v:{{a:[{Q}x{Q}]}}}}"], ["{v:}"]),
        ({"type": "object", "properties": {n: {"type": "null"} for n in "abc"}, "minProperties": 2, "maxProperties": 2},
         ["{a:null,c:null}"], ["{a:null}", "{a:null,b:null,c:null}"]),
    ],
)  # fmt: skip
def test_calls_are_as_their_schema_says(
    schema: dict[str, Any], written: list[str], not_written: list[str], accepts: Accepts
) -> None:
    for arguments in written:
        assert accepts(schema, arguments), f"{arguments} was kept out"
    for arguments in not_written:
        assert not accepts(schema, arguments), f"{arguments} got through"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (of(v={"not": {"type": "null"}}), "not is not supported"),
        (of(v={"if": {}, "then": {}}), "if is not supported"),
        (of(v={"type": "array", "uniqueItems": True}), "uniqueItems"),
        (of(v={"type": "array", "contains": {}}), "contains"),
        (of(v={"patternProperties": {"a": {}}}), "patternProperties"),
        (of(v={"type": "object", "propertyNames": {}}), "propertyNames"),
        (of(v={"type": "number", "multipleOf": 0.5}), "multipleOf"),
        (of(v={"type": "integer", "multipleOf": 3}), "multipleOf 3 without close bounds"),
        (of(v={"oneOf": [{"type": "integer"}, {"type": "number"}]}), "branches may hold at once"),
        (of(v={"type": "string", "pattern": "a", "maxLength": 2}), "pattern together with minLength or maxLength"),
        (of(v={"type": "string", "pattern": "(?=a)b"}), "looking ahead"),
        (of(v={"type": "string", "pattern": "a^b"}), "Anchors"),
        (of(v={"type": "string", "pattern": r"\Aab"}), r"escape '\\\\A'"),
        (of(v={"type": "string", "pattern": "a{1000}"}), "repeats 1000 times"),
        (of(v={"type": "bogus"}), "type 'bogus'"),
        (of(v={"$ref": "#/nowhere"}), "points to nothing"),
        (of(v={"$ref": "https://example.org/s"}), "references within the schema"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, **of(v={"anyOf": [{"$ref": "#/$defs/a"}]})}, "leads back to itself"),
        (of(v={"type": "integer", "minimum": 5, "maximum": 4}), "leave nothing between them"),
        (of(v={"type": "array", "minItems": 3, "maxItems": 2}), "minItems 3 with maxItems 2"),
        (of(v={"enum": ["a"], "type": "integer"}), "an enum without a value of type integer"),
        (of(v={"enum": ["a"], "maxLength": 3}), "enum or const together with maxLength"),
        (of(v=False), "nothing satisfies"),
        (of(v={"allOf": [{"type": "null"}, {"type": "integer"}]}), "both null and integer"),
        (of(v={"type": "string", "minLength": -1}), "minLength -1"),
        (of(v=7), "7 is not supported"),
        ({"type": "array"}, "parameters of type 'array'"),
        ({"type": "object", "properties": {"": {}}}, "a property named ''"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "which additionalProperties forbids"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(schema: dict[str, Any], words: str, markers: ReplyMarkers) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        grammar_of(schema, markers)
    assert caught.value.field == "tools"


def test_a_deep_schema_is_refused_and_not_a_crash(markers: ReplyMarkers) -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(60):
        schema = of(v=schema)
    with pytest.raises(RequestError, match="nested more than"):
        grammar_of(schema, markers)


def test_when_the_grammar_applies(markers: ReplyMarkers) -> None:
    schema = of(v={"type": "null"})
    auto = grammar_of(schema, markers)
    assert (auto.trigger_token_id, auto.may_trigger_again, auto.field) == (markers.opens_call, True, "tools")
    assert auto.thought is not None
    assert grammar_of(schema, markers, parallel=False).may_trigger_again is False
    required = grammar_of(schema, markers, choice="required")
    assert (required.trigger_token_id, required.thought) == (None, None)
    thinking = grammar_of(schema, markers, choice="required", thinking=True).thought
    assert thinking is not None
    assert (thinking.open_id, thinking.close_id, thinking.is_open) == (13, 14, False)
    inside = grammar_of(schema, markers, choice="required", starts_in_thought=True).thought
    assert inside is not None
    assert inside.is_open
    assert thought_tokens(None, thinking=True) is None
    tools = normalize_tools([{"type": "function", "function": {"name": "f"}}], "none")
    assert tool_call_grammar(tools, markers) is None


SCHEMA = {"type": "object", "properties": {"x": {"enum": ["a", 1]}}, "required": ["x"]}
CALLED = "<|tool_call>call:f{a:1}<tool_call|>"


@pytest.mark.parametrize(
    ("answer", "parallel", "text", "is_taken"),
    [
        (json_schema_grammar(SCHEMA), True, '{"x":"a"}', True),
        (json_schema_grammar(SCHEMA), True, '{"x":"b"}', False),
        (json_schema_grammar(SCHEMA), True, CALLED, True),
        (json_schema_grammar(SCHEMA), True, CALLED + CALLED, True),
        (json_schema_grammar(SCHEMA), False, CALLED + CALLED, False),
        (json_schema_grammar(SCHEMA), True, CALLED.replace("1", "true"), False),
        (json_schema_grammar(SCHEMA), True, '{"x":"a"}' + CALLED, False),
        (json_schema_grammar(SCHEMA), True, CALLED + '{"x":"a"}', False),
        (json_schema_grammar(SCHEMA), True, "It is cold.", False),
        (json_schema_grammar(SCHEMA, any_whitespace=True), True, '{ "x": 1 }', True),
        (json_object_grammar(), True, '{"y":[]}', True),
        (json_object_grammar(), True, CALLED, True),
        (json_object_grammar(), True, "[]", False),
    ],
)
def test_calls_or_an_answer_in_json(
    answer: GrammarSpec,
    parallel: bool,
    text: str,
    is_taken: bool,
    folder: Path,
    tokenizer: Tokenizer,
    markers: ReplyMarkers,
) -> None:
    """Each by itself, and nothing else."""
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    use = normalize_tools([{"type": "function", "function": {"name": "f", "parameters": parameters}}], "auto")
    spec = call_or_answer_grammar(use, markers, answer, parallel=parallel)
    compiled = GrammarCompiler(folder, vocab_size=512, eos_token_ids=[EOS]).start(spec).result()
    walker = GrammarWalker(spec, compiled, vocab_size=512, stop_token_ids=[EOS])
    for token_id in [*tokenizer.encode(text), EOS]:
        walker.accept(token_id)
    assert (walker.stage is not Stage.FAILED) == is_taken


def test_a_named_choice_leaves_only_that_tool(markers: ReplyMarkers) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("first", "second")]
    choice = {"type": "function", "function": {"name": "second"}}
    spec = tool_call_grammar(normalize_tools(tools, choice), markers)
    assert spec is not None
    assert "call:second" in spec.sources[0]
    assert "call:first" not in spec.sources[0]


@given(low=st.integers(-2000, 2000), size=st.integers(-2, 3000), number=st.integers(-6000, 6000))
def test_integer_ranges(low: int, size: int, number: int) -> None:
    pattern = integers_between(low, low + size)
    if size < 0:
        assert pattern is None
    else:
        assert pattern is not None
        for value in (number, low, low + size, low - 1, low + size + 1):
            assert bool(re.fullmatch(pattern, str(value))) == (low <= value <= low + size)


@given(
    low=st.decimals(-50, 50, places=2),
    size=st.decimals(0, 60, places=2),
    is_low_open=st.booleans(),
    is_high_open=st.booleans(),
    number=st.decimals(-120, 120, places=3),
)
def test_number_ranges(low: Decimal, size: Decimal, is_low_open: bool, is_high_open: bool, number: Decimal) -> None:
    high = low + size
    pattern = numbers_between(low, high, is_low_open=is_low_open, is_high_open=is_high_open)
    for value in (number, low, high, low + size / 2):
        text = format(value.quantize(Decimal("0.001")) + 0, "f").removeprefix("-" if value == 0 else "?")
        exact = Decimal(text)
        is_above = exact > low or (exact == low and not is_low_open)
        is_below = exact < high or (exact == high and not is_high_open)
        assert bool(pattern and re.fullmatch(pattern, text)) == (is_above and is_below)


@given(names=st.sets(st.text("ab_1", min_size=1, max_size=3), min_size=1), name=st.text("ab_12", max_size=4))
def test_other_names_are_none_of_these(names: set[str], name: str) -> None:
    is_a_key = bool(re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name))
    pattern = _names_other_than(frozenset(names))
    assert bool(re.fullmatch(pattern, name)) == (is_a_key and name not in names)


@given(text=st.text("abc\n", max_size=5))
@pytest.mark.parametrize("pattern", ["a", "^a", "a$", "^ab|c$", "^(a|b)+$", "[$^]|b", r"a\$|b", "", "^$", "a|"])
def test_a_pattern_may_match_anywhere(pattern: str, text: str) -> None:
    is_found = re.search(pattern.replace("$", r"\Z").replace(r"\\Z", r"\$").replace(r"[\Z^]", "[$^]"), text) is not None
    assert bool(re.fullmatch(whole_match(pattern, "tools"), text)) == is_found


@pytest.mark.parametrize(
    ("make", "words", "field"),
    [
        (lambda: json_schema_grammar("{"), "not JSON", "response_format"),
        (lambda: json_schema_grammar([1]), "not an object", "response_format"),
        (lambda: json_schema_grammar({"items": {"not": {}}}), "with not", "response_format"),
        (lambda: json_schema_grammar({"allOf": [{}, {}]}), "allOf of several", "response_format"),
        (lambda: json_schema_grammar({"properties": {"a": {"minLength": 5000}}}), "above 256", "response_format"),
        (lambda: json_schema_grammar({"oneOf": [{"type": "integer"}, {"minimum": 1}]}), "use anyOf", "response_format"),
        (lambda: json_schema_grammar({"pattern": "(?!a)"}), "looking ahead", "response_format"),
        (lambda: regex_grammar("a$b"), "Anchors", "structured_outputs"),
        (lambda: regex_grammar(5), "as text, not 5", "structured_outputs"),
        (lambda: choice_grammar([]), "one or more choices", "structured_outputs"),
        (lambda: choice_grammar(["a", 1]), "not texts", "structured_outputs"),
        (lambda: ebnf_grammar(""), "as text", "structured_outputs"),
        (lambda: ebnf_grammar("x" * (1 << 21)), "at most", "structured_outputs"),
    ],
)
def test_wrong_shapes_of_answers_are_refused(make: Callable[[], GrammarSpec], words: str, field: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        make()
    assert caught.value.field == field
