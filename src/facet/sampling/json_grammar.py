"""Writes the grammar of the JSON that satisfies a schema.

The grammar library makes it, and what it gets wrong is mended in the text. A change in that text is noticed by
tests/sampling/test_json_grammar.py, which walks through grammars and looks at every token they allow.
"""

import re

ANY_OBJECT = '{"type": "object", "additionalProperties": true}'
# At each gap, where white space is free. Without a bound a model that has nothing to say writes blanks for ever.
MAX_WHITESPACE = 20

_HEX = "[0-9A-Fa-f]"
# Escapes by letter, and by number: any character but halves of surrogate pairs, which stand in pairs.
_ESCAPE = (
    r'basic_escape ::= ([\"\\/bfnrt] | "u" ('
    f"[0-9A-Ca-cE-Fe-f] {_HEX} {_HEX} {_HEX} | [Dd] [0-7] {_HEX} {_HEX} | "
    rf'[Dd] [89A-Ba-b] {_HEX} {_HEX} "\\u" [Dd] [C-Fc-f] {_HEX} {_HEX}))'
)
_ESCAPE_RULE = re.compile(r"^basic_escape ::= .*$", re.MULTILINE)
_BOUNDED_CHARACTER = re.compile(r'^(\w+ ::= \(\(\[\^)(\\"\\\\\\r\\n\]\)\))$', re.MULTILINE)
_JSON_PATTERN = re.compile(r'^(\w+ ::= Regex\("(?:[^"\\]|\\.)*"), json_string=true\)', re.MULTILINE)


def json_grammar(schema: str, *, any_whitespace: bool) -> str:
    """In the notation of the library. A schema's patterns match what stands between the quotes in JSON."""
    import xgrammar

    if any_whitespace:
        grammar = xgrammar.Grammar.from_json_schema(schema, max_whitespace_cnt=MAX_WHITESPACE)
    else:
        grammar = xgrammar.Grammar.from_json_schema(schema, any_whitespace=False, separators=(",", ":"))
    text = str(grammar)
    # Inside values that a schema says nothing about, it writes ", " whatever the separators.
    text = text.replace('((", " basic_', '(("," basic_')
    # In strings of bounded length it takes control characters as they are.
    text = _BOUNDED_CHARACTER.sub(r"\1\\0-\\x1f\2", text)
    # It would drop what JSON escapes from the matches of a pattern, or escape nothing where nothing else is left.
    text = _JSON_PATTERN.sub(r"\1)", text)
    return _ESCAPE_RULE.sub(lambda _: _ESCAPE, text)
