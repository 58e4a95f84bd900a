"""Constrained JSON: compact, free of raw control characters, and such that strict parsers take it."""

import json
import random
import re
from itertools import chain, product
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pydantic_core
import pytest
import xgrammar

from facet.chat.answer_grammar import json_object_grammar, json_schema_grammar
from facet.chat.json_patterns import json_text_pattern
from facet.errors import RequestError
from facet.grammar_spec import GrammarSpec
from facet.sampling import GrammarCompiler
from facet.sampling.grammar_walker import GrammarWalker, Stage
from facet.sampling.json_grammar import json_grammar
from facet.sampling.token_bytes import read_token_bytes
from tests.tokens.gemma_like import build_gemma_like, write_tokenizer_folder

VOCAB_SIZE = 512
EOS = 1
TOKENIZER = build_gemma_like()
ENDS = (b'"', b"}", b"]", b"e", b"l", b"@", b".")  # of strings, objects, lists, constants and their parts
CONTROL_CHARACTERS = frozenset(range(0x20))

FORMATS = (
    *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid"),
    *("uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
)
STRINGS: dict[str, dict[str, Any]] = {
    "any": {},
    "at most": {"maxLength": 4},
    "at least": {"minLength": 2},
    "between": {"minLength": 1, "maxLength": 3},
    "constants": {"enum": ["a\tb", 'c"', "d, json_string=true)", "é"]},
    "dots": {"pattern": "^.{1,5}$"},
    "anything": {"pattern": r"^[\s\S]+$"},
    "no x": {"pattern": "^[^x]+$"},
    "ASCII": {"pattern": r"^[\x00-\x7f]{1,3}$"},
    "tabs": {"pattern": r"^\t+$"},
    "quotes": {"pattern": '^a"b$'},
    "white space": {"pattern": r"^\s{1,3}$"},
    "a pattern and a format": {"pattern": "^ab?$", "format": "email"},
    "other letters": {"pattern": "^[一-龥é]+\n?$"},
    **{name: {"format": name} for name in FORMATS},
}
OBJECTS: dict[str, dict[str, Any]] = {
    "anything in it": {"additionalProperties": True},
    "one of anything": {"properties": {"a": {}}, "required": ["a"]},
    "lists": {"properties": {"a": {"type": "array", "items": {}, "minItems": 2}}, "required": ["a"]},
    "pairs": {
        "properties": {"a": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]}},
        "required": ["a"],
    },
    "numbers by name": {"additionalProperties": {"type": "integer"}, "minProperties": 2},
    "short names": {"propertyNames": {"maxLength": 2}, "additionalProperties": {"type": "null"}, "minProperties": 1},
    "names by pattern": {"patternProperties": {r"^a\t?.$": {"type": "boolean"}}, "minProperties": 1},
    "a reference elsewhere": {"properties": {"a": {"$ref": "#/x"}}, "required": ["a"], "x": {"pattern": r"^\n$"}},
    "awkward names": {"properties": {'a"\tb': {"const": {"x": [1, "\n"]}}, "pattern": {}}, "required": ['a"\tb']},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    **{f"string: {name}": {"type": "string", **rest} for name, rest in STRINGS.items()},
    **{f"object: {name}": {"type": "object", **rest} for name, rest in OBJECTS.items()},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def compiler(folder: Path) -> GrammarCompiler:
    return GrammarCompiler(folder, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])


@pytest.fixture(scope="module")
def spelled(folder: Path) -> list[bytes]:
    return read_token_bytes(folder, VOCAB_SIZE)


def walker_of(compiler: GrammarCompiler, spec: GrammarSpec) -> GrammarWalker:
    return GrammarWalker(spec, compiler.start(spec).result(), vocab_size=VOCAB_SIZE, stop_token_ids=[EOS])


def allowed(walker: GrammarWalker) -> list[int]:
    mask = walker.mask()
    assert mask is not None
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def write(walker: GrammarWalker, spelled: list[bytes], seed: int, forbidden: frozenset[int]) -> str | None:
    """An answer at random, in a hurry to end. None: it did not. Tokens with forbidden bytes must never be allowed."""
    rng = random.Random(seed)
    written = b""
    for _ in range(200):
        tokens = allowed(walker)
        assert tokens, f"{written!r} leads nowhere"
        wrong = [spelled[token] for token in tokens if forbidden & set(spelled[token])]
        assert not wrong, f"{wrong!r} may follow {written!r}"
        ends = [token for token in tokens if token == EOS or spelled[token] in ENDS]
        token = rng.choice(ends) if ends and rng.random() < 0.6 else rng.choice(tokens)
        walker.accept(token)
        if token == EOS:
            return written.decode()
        written += spelled[token]
    return None


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_what_is_written_is_compact_json_that_satisfies_its_schema(
    compiler: GrammarCompiler, spelled: list[bytes], schema: dict[str, Any]
) -> None:
    spec = json_schema_grammar(schema)
    texts = [write(walker_of(compiler, spec), spelled, seed, CONTROL_CHARACTERS) for seed in range(8)]
    finished = [text for text in texts if text is not None]
    assert finished
    validator = jsonschema.Draft202012Validator(schema)
    for text in finished:
        value = pydantic_core.from_json(text)  # refuses what some parsers let pass, such as half a surrogate pair
        validator.validate(value)
        assert not re.search(r"\s", re.sub(r'"(?:[^"\\]|\\.)*"', "", text)), "white space between tokens"


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_free_white_space_stays_outside_of_strings(
    compiler: GrammarCompiler, spelled: list[bytes], schema: dict[str, Any]
) -> None:
    spec = json_schema_grammar(schema, any_whitespace=True)
    texts = [write(walker_of(compiler, spec), spelled, seed, frozenset()) for seed in range(8)]
    validator = jsonschema.Draft202012Validator(schema)
    for text in texts:
        if text is not None:
            validator.validate(pydantic_core.from_json(text))


@pytest.mark.parametrize(
    ("text", "is_compact"),
    [
        ('{"name":"a b","more":{"x":[1,{"y":null}],"z":[]}}', True),
        ('{"name": "a b","more":{}}', False),
        ('{"name":"a b", "more":{}}', False),
        ('{"name":"a b","more":{"x":[1, 2]}}', False),
        ('{\n  "name": "a b",\n  "more": {\n    "x": 1\n  }\n}', False),
    ],
)
def test_json_is_compact_unless_white_space_is_free(compiler: GrammarCompiler, text: str, is_compact: bool) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "more": {}}, "required": ["name"]}
    for any_whitespace in (False, True):
        for spec in (
            json_schema_grammar(schema, any_whitespace=any_whitespace),
            json_object_grammar(any_whitespace=any_whitespace),
        ):
            walker = walker_of(compiler, spec)
            for token_id in TOKENIZER.encode(text).ids:
                walker.accept(token_id)
            assert (walker.stage is not Stage.FAILED) == (any_whitespace or is_compact)


def test_halves_of_surrogate_pairs_are_written_in_pairs(compiler: GrammarCompiler) -> None:
    for text, is_whole in [
        (r'{"a":"\ud83d\ude42"}', True),
        (r'{"a":"\u00e9\uD7FF\uE000"}', True),
        (r'{"a":"\ud83d"}', False),
        (r'{"a":"\ude42\ud83d"}', False),
    ]:
        walker = walker_of(compiler, json_object_grammar())
        for token_id in TOKENIZER.encode(text).ids:
            walker.accept(token_id)
        assert (walker.stage is not Stage.FAILED) == is_whole, text


PATTERNS = (
    *(r"\d{3}-\d{4}", r"[^\s@]+", "[一-龥]+", "😀", ".*", ".{0,64}", r"[\s\S]*", r'["\t]', 'a"b', r"[\x00-\x7f]+"),
    *(r"\\d", r"\\", "[^a]", r"[\w.-]+", r"[-a\]]", r"[\^b]", r"[\[\\]", r"\W", r"[^\W]", r"[\D]", r'(\t|b")', r"\x09"),
    *(r"\u0009", r"\0", "a.b", r"\$a", '.+"', r"[^\]]", "[a-]", r"[\d-]", r"\S\s", "a|b", "(?:ab)?c{2}"),
)
TEXTS = (
    *("", "a", 'b"', '"', "\\", "\t", "\n", "a\tb", "é", "一", "😀", "a.b", "x" * 70, "\x00", "\x7f", "-", "]", "^"),
    *("abc", "123-4567", "a b", " ", "[", 'a"b', "\\d", "aé", "/", "$a", "ab", "abcc", "cc", "a\n", "_"),
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_in_json_what_it_means_in_a_string(pattern: str) -> None:
    """Every text is written as JSON, and matches then exactly if it matched before; as it is, it never breaks JSON."""
    inside_quotes = re.compile(json_text_pattern(pattern))
    for text in TEXTS:
        as_json = json.dumps(text, ensure_ascii=False)[1:-1]
        is_match = re.fullmatch(pattern, text, re.ASCII) is not None
        # Such as \u0000, which is written only where nothing else can be.
        if "\\u" not in as_json or pattern == r"\0":
            assert bool(inside_quotes.fullmatch(as_json)) == is_match, text
        if as_json != text:
            assert not inside_quotes.fullmatch(text) or ('"' not in text and json.loads(f'"{text}"') != text)


# Groups that repeat something at one of their ends, and may be left out or come again; then, all kinds of ends.
REPEATED = (
    *("b(a+)?", "1(aa+)?", "(?:(?:b+a)?){0,2}", "(a|a{1,2})b", "(?:bb+|a)?", "a{1,2}|b{2}", "(a(b)?|aa)"),
    *(r"(?:\(a+)?b", "(?:[|()]a+)?", r"(?:\?b+)?", '("a{2,})?', "(ba+)?", "(?:(?:a+){2,})?", "(?:[^(]b*)?b"),
)


def random_pattern(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        return rng.choice(("a", "b", "[ab]", r"\.", '"', r"\\", "[^a]", r"\(", "[|()]"))
    inner = random_pattern(rng, depth - 1)
    if kind < 0.5:
        return inner + random_pattern(rng, depth - 1)
    if kind < 0.65:
        return f"(?:{inner}|{random_pattern(rng, depth - 1)})"
    return f"({inner})" + rng.choice(("?", "*", "+", "{1,2}", "{2}", "{0,2}", "{2,}"))


@pytest.mark.parametrize("pattern", [*REPEATED, *(random_pattern(random.Random(seed), 4) for seed in range(60))])
def test_what_may_be_left_out_is_left_out_or_whole(pattern: str) -> None:
    """Patterns as they are compiled, of which the library alone gets some wrong."""
    letters = xgrammar.TokenizerInfo([bytes([code]) for code in range(256)], vocab_size=256, stop_token_ids=[0])
    backend = xgrammar.GrammarCompiler(letters, max_threads=1, cache_enabled=False)
    spec = json_schema_grammar({"type": "string", "pattern": f"^(?:{pattern})$"})
    compiled = backend.compile_grammar(json_grammar(spec.sources[0], any_whitespace=False))
    texts = [product('ab."\\(|', repeat=count) for count in range(4)] + [
        product("ab", repeat=count) for count in (4, 5)
    ]
    for text in map("".join, chain.from_iterable(texts)):
        matcher = xgrammar.GrammarMatcher(compiled)
        is_taken = matcher.accept_string(json.dumps(text)) and matcher.is_completed()
        assert is_taken == (re.fullmatch(pattern, text) is not None), text


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [("^a$", "a"), ("^(ab+)?\\$$", "$"), (r"^(ab+)?\$", "$"), (r"^[$]?\\$", "$\\"), ("^$", ""), (r"^\^?$", "^")],
)
def test_anchors_are_no_characters(compiler: GrammarCompiler, pattern: str, taken: str) -> None:
    for text, is_taken in ((taken, True), (taken + "b", False), ("b" + taken, False)):
        walker = walker_of(compiler, json_schema_grammar({"type": "string", "pattern": pattern}))
        for token_id in [*TOKENIZER.encode(json.dumps(text)).ids, EOS]:
            walker.accept(token_id)
        assert (walker.stage is not Stage.FAILED) == is_taken, text


def test_control_characters_by_letter() -> None:
    assert json_text_pattern(r"\cI\cj") == r"(?:\\[t])(?:\\[n])"


def test_a_schema_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(400):
        schema = {"unknown": schema}
    with pytest.raises(RequestError, match="nested more than"):
        json_schema_grammar(schema)
