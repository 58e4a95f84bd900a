"""Texts of bounded length: what may follow is what the library says, without its looking at every token."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from facet.chat.answer_grammar import json_schema_grammar
from facet.grammar_spec import GrammarSpec
from facet.sampling import GrammarCompiler
from facet.sampling.bitmask import num_words
from facet.sampling.bounded_matcher import BoundedMatcher, without_bounds
from facet.sampling.compiled_grammar import CompiledGrammar
from facet.sampling.token_lengths import TokenLengths

EOS = 1
LETTERS = "abcdefghijklmnopqrstuvwxyz ABCXYZ0123456789éß漢字😀"
# Every byte, and tokens of all lengths with and without what ends a text, begins another or is escaped.
OTHERS = (
    *(
        '"}',
        '",',
        '","',
        '":"',
        '","b":"',
        '"a":"xy',
        'xy"',
        'xyz","b":"',
        '":{"',
        '{"a":"',
        "ab:",
        ",ab",
        "{ab",
        "ab:1",
    ),
    *(
        "\\n",
        "\\\\",
        '\\"',
        "x\\n",
        "x\\",
        "xy\\\\\\",
        "\\\\" * 4,
        '\\n"',
        '":"\\n',
        "n",
        "nx",
        "nxy",
        "tab",
        "true",
        "12",
    ),
)


def spelled_tokens() -> list[bytes]:
    rng = random.Random(0)
    words = {"".join(rng.choices(LETTERS, k=length)) for length in range(2, 14) for _ in range(12)}
    tokens = [b"\xff0", b"\xff1", *(bytes([code]) for code in range(256))]
    tokens += [word.encode() for word in (*sorted(words), *OTHERS)]
    return [*tokens, "é漢".encode()[:3], "漢".encode()[1:] + b"ab", b"ab" + "漢".encode()[:2], b""]


SPELLED = spelled_tokens()
VOCAB_SIZE = len(SPELLED)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrammarCompiler]:
    from facet.sampling import grammar_compiler

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar_compiler, "read_token_bytes", lambda _folder, _size: SPELLED)
        yield GrammarCompiler(tmp_path_factory.mktemp("none"), vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


SCHEMAS = {
    "short": of(a={"type": "string", "maxLength": 3}, b={"type": "string", "maxLength": 1}),
    "longer than tokens": of(a={"type": "string", "maxLength": 40}),
    "as long as tokens": of(a={"type": "string", "maxLength": 12}),
    "between": of(a={"type": "string", "minLength": 3, "maxLength": 9}, b={"type": "string"}),
    "just so long": of(a={"type": "string", "minLength": 4, "maxLength": 4}),
    "in a list": of(a={"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3}),
    "one or the other": of(
        a={"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}, {"enum": ["abcdef"]}]}
    ),
    "names": {
        "type": "object",
        "propertyNames": {"maxLength": 4},
        "additionalProperties": {"type": "null"},
        "minProperties": 2,
    },
    "patterns": of(
        a={"type": "string", "pattern": "^[a-z0-9 ]{1,20}$"},
        b={"type": "string", "pattern": "^.{0,17}$"},
        c={"type": "string", "pattern": "^[a-c]{2,5}$"},
    ),
    "alone": {"type": "string", "maxLength": 6},
}
CALLS = """start: "{" pair ("," pair)* "}"
pair: key ":" text <[0]>
key[max_chars=4]: /[a-z]+/
text[max_chars=7]: /[ -~é]*/
"""
SPECS = {name: json_schema_grammar(schema) for name, schema in SCHEMAS.items()} | {
    "calls": GrammarSpec(kind="tool_calls", sources=(CALLS,))
}


def allowed_by(matcher: Any) -> set[int]:
    mask = np.zeros((1, num_words(VOCAB_SIZE)), np.int32)
    matcher.fill_next_token_bitmask(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB_SIZE]).tolist())


def followed(compiled: CompiledGrammar) -> BoundedMatcher:
    matcher = compiled.matcher([EOS], is_triggered=False)
    assert isinstance(matcher, BoundedMatcher)
    return matcher


def write(matcher: BoundedMatcher, seed: int, look: Callable[[BoundedMatcher, set[int], bytes], None]) -> bytes | None:
    """An answer at random, in no hurry to end a text. None: it did not end."""
    rng, written = random.Random(seed), b""
    for _ in range(60):
        allowed = allowed_by(matcher)
        assert allowed, f"{written!r} leads nowhere"
        look(matcher, allowed, written)
        if rng.random() < 0.3:
            matcher = matcher.fork()
        unlikely = {EOS} | {token for token in allowed if SPELLED[token][:1] in (b'"', b"}", b"\xff")}
        token = rng.choice(sorted(allowed - unlikely if allowed - unlikely and rng.random() < 0.8 else allowed))
        assert matcher.accept_token(token)
        if token == EOS:
            return written
        written += SPELLED[token]
    return None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_as_the_library_allows(compiler: GrammarCompiler, spec: GrammarSpec, seed: int) -> None:
    """But for escapes and characters, of which none is begun that would not fit."""

    def may_be_left_out(token: bytes) -> bool:
        return b"\\" in token or token.decode(errors="replace")[-1:] == "\ufffd"

    def compare(matcher: BoundedMatcher, allowed: set[int], written: bytes) -> None:
        by_library = allowed_by(matcher._counting.fork())
        assert allowed <= by_library, [SPELLED[token] for token in allowed - by_library]
        left_out = {token for token in by_library - allowed if not may_be_left_out(SPELLED[token])}
        assert not left_out, (written, [SPELLED[token] for token in left_out])

    write(followed(compiler.start(spec).result()), seed, compare)


@pytest.mark.parametrize("name", SPECS)
def test_answers_satisfy_their_schemas(compiler: GrammarCompiler, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """And the library never has to let a text go beyond its bound, of which it would complain."""
    compiled = compiler.start(SPECS[name]).result()
    texts = [write(followed(compiled), seed, lambda *_: None) for seed in range(20)]
    finished = [text for text in texts if text is not None]
    assert finished
    for text in finished if name in SCHEMAS else ():
        schema = {**SCHEMAS[name], "minProperties": 0}  # names may be equal
        jsonschema.validate(json.loads(text), schema)
    said = capfd.readouterr().err
    assert "budget" not in said, said


def test_quotes_and_line_ends_fit(compiler: GrammarCompiler) -> None:
    matcher = followed(compiler.start(json_schema_grammar(of(a={"type": "string", "maxLength": 10}))).result())
    for character in r'{"a":"x\"y\n\\z':
        token = SPELLED.index(character.encode())
        assert token in allowed_by(matcher), character
        assert matcher.accept_token(token)
    assert {SPELLED[token] for token in allowed_by(matcher)} >= {b'"', b"a"}
    assert SPELLED.index(b"\\") not in allowed_by(matcher), "an escape has two characters"


def test_what_is_not_allowed_is_not_accepted(compiler: GrammarCompiler) -> None:
    matcher = followed(compiler.start(SPECS["short"]).result())
    for text in (b'{"a":"', b"nxy"):
        assert matcher.accept_token(SPELLED.index(text))
    assert not matcher.accept_token(SPELLED.index(b"n"))
    assert matcher.accept_token(SPELLED.index(b'","b":"'))
    assert matcher.accept_token(SPELLED.index(b"n"))


def test_few_tokens_are_tried(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the longest where no bound is close."""
    tried: list[int] = []
    keeps_within = BoundedMatcher._keeps_within
    monkeypatch.setattr(
        BoundedMatcher, "_keeps_within", lambda self, token: tried.append(token) or keeps_within(self, token)
    )
    matcher = followed(compiler.start(SPECS["longer than tokens"]).result())
    for text in (b'{"a":"', b"n"):
        matcher.accept_token(SPELLED.index(text))
    allowed_by(matcher)
    assert len(tried) == 1
    for _ in range(13):
        matcher.accept_token(SPELLED.index(b"nxy"))
    tried.clear()
    assert allowed_by(matcher)
    assert 1 < len(tried) < 70, "one of each length, and those with quotes or cut characters"


def test_bounds_are_taken_from_rules_alone() -> None:
    found: list[int] = []
    grammar = 'a[max_chars=3]: "b[max_chars=4]: "\nc[max_chars=5] ::= x\nd: /e[max_chars=6]:/\n'
    assert without_bounds(grammar, found) == 'a: "b[max_chars=4]: "\nc ::= x\nd: /e[max_chars=6]:/\n'
    assert found == [3, 5]


def test_schemas_without_bounds_are_followed_once(compiler: GrammarCompiler) -> None:
    compiled = compiler.start(json_schema_grammar(of(a={"type": "string", "minLength": 2}))).result()
    assert compiled.counting is None
    assert not isinstance(compiled.matcher([EOS], is_triggered=False), BoundedMatcher)


def test_lengths_of_tokens() -> None:
    lengths = TokenLengths(
        [b"ab", "é".encode(), b'a"bc', b"\\", b"\\\\", "漢".encode()[:1], "漢".encode()[1:], b""], b'"\\'
    )
    assert lengths.counts.tolist() == [2, 1, 4, 1, 2, 1, 0, 0]
    assert lengths.needed.tolist() == [2, 1, 4, 2, 2, 2, 1, 0]
    assert lengths.behind.tolist() == [-1, -1, 2, -1, -1, -1, -1, -1]
    assert lengths.entering(2) is lengths.entering(10**6)
    assert list(lengths.plain_of_each(np.array([0xFFFFFFFF], np.uint32))) == [(2, 0), (1, 1)]
    assert lengths.parts.tolist() == [0b1100000]
