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
# The characters of strings of bounded length, and rules that are nothing else.
_CHARACTER_OF_STRING = r"[^\"\\\r\n]"
_CHARACTER_RULE = re.compile(rf"^(\w+) ::= \(\({re.escape(_CHARACTER_OF_STRING)}\)\)$", re.MULTILINE)
_PLAIN = r"[^\0-\x1f\"\\]"
_ANY_CHARACTER = rf'basic_character ::= (({_PLAIN}) | ("\\" basic_escape))'
_ESCAPE_OF_TWO = r'"\\" [\"\\/bfnrt]'
# What the library itself writes behind strings of any length.
_BEHIND_STRING = r'(=("\"" [ \n\r\t]* [,}\]:]))'
# Constants and classes of characters, and what is repeated at most so often.
_PARTS = re.compile(
    r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|(?P<repeated>\w+)\{(?P<least>\d+), (?P<most>-1|\d+)\}', re.DOTALL
)
# The most characters of a string that has a bound at all: more than any answer has.
_MOST_CHARACTERS = 100_000
# Up to so many repetitions in a pattern, the library may well compile each number.
_FEW = 16
# Patterns of one character that is repeated: with escapes, where they are rules, or as the text of a grammar has them.
_CLASS = r"\[(?:[^\]\\]|\\.)*\]"
_REPEATED_RULE = re.compile(r"^(\w+) ::= \(\((\w+)\{(\d+), (\d+)\}\)\)$", re.MULTILINE)
_ESCAPED_RULE = re.compile(rf'^(\w+) ::= \(\(({_CLASS})\) \| \(("\\\\" {_CLASS})\)\)$', re.MULTILINE)
_REPEATED_CLASS = re.compile(r"(\^\[(?:\\\\.|[^\]\\])*\])\{(\d+),(\d+)\}\$", re.DOTALL)
_JSON_PATTERN = re.compile(
    r'^(?P<rule>\w+) ::= Regex\("(?P<pattern>(?:[^"\\]|\\.)*)", json_string=true\)', re.MULTILINE
)
# Where alternatives begin and end, in a pattern as the text of a grammar has it, with backslashes before some.
_CHARACTER = r"\\\\(?:\\.|.)|\\."
_ENDS = re.compile(
    rf"{_CHARACTER}|\[(?:{_CHARACTER}|[^\]\\])*\]"
    r"|(?P<opens>\((?:\\\?:)?)|(?P<closes>\)|\$\Z)|(?P<parts>\|)",
    re.DOTALL,
)


def json_grammar(schema: str, *, any_whitespace: bool) -> str:
    """A schema's grammar in the notation of the library. A schema's patterns match what stands between the quotes in
    JSON."""
    import xgrammar

    if any_whitespace:
        grammar = xgrammar.Grammar.from_json_schema(schema, max_whitespace_cnt=MAX_WHITESPACE)
    else:
        grammar = xgrammar.Grammar.from_json_schema(schema, any_whitespace=False, separators=(",", ":"))
    text = str(grammar)
    # Inside values that a schema says nothing about, it writes ", " whatever the separators.
    text = text.replace('((", " basic_', '(("," basic_')
    text = _with_cheap_patterns(_with_cheap_bounds(text))
    text = _JSON_PATTERN.sub(_pattern, text)
    return _ESCAPE_RULE.sub(lambda _: _ESCAPE, text)


def _with_cheap_bounds(text: str) -> str:
    """Strings of at most so many characters, as JSON writes them: an escape counts as two.

    The library would compile each number of characters anew: 28 s for 200 with a vocabulary of 262,144, and 0.3 as a
    bound that is counted while characters are written. It would take control characters as they are, and no escapes.
    """
    characters = set(_CHARACTER_RULE.findall(text))
    rules: dict[str, str] = {}

    def change(found: re.Match[str]) -> str:
        if found[0] == _CHARACTER_OF_STRING:
            rules["basic_character"] = _ANY_CHARACTER
            return "basic_character"
        if found["repeated"] not in characters:
            return found[0]
        least, most = int(found["least"]), int(found["most"])
        name = f"{found['repeated']}_{least}" if most < 0 else f"{found['repeated']}_{least}_{most}"
        body = _repeated(_PLAIN, _ESCAPE_OF_TWO, least)
        rules[name] = f"{name} ::= {body}" if most < 0 else f"{_bounded(name, most)} ::= {body}"
        return name

    return "\n".join((_PARTS.sub(change, text).rstrip("\n"), *rules.values(), ""))


def _with_cheap_patterns(text: str) -> str:
    """Like `_with_cheap_bounds`, for patterns of one character with escapes, such as ^.{1,100}$."""
    characters = {name: (plain, escape) for name, plain, escape in _ESCAPED_RULE.findall(text)}

    def change(found: re.Match[str]) -> str:
        name, repeated, least, most = found[1], found[2], int(found[3]), int(found[4])
        is_pattern = repeated in characters and most > _FEW and f'"\\"" {name} "\\""' in text
        return f"{_bounded(name, most)} ::= {_repeated(*characters[repeated], least)}" if is_pattern else found[0]

    return _REPEATED_RULE.sub(change, text)


def _bounded(rule: str, most: int) -> str:
    return f"{rule}[max_chars={min(most, _MOST_CHARACTERS)}]"


def _repeated(plain: str, escape: str, least: int) -> str:
    """A repetition, written so that the library keeps sets of tokens for it. None of the characters that there must be
    is an escape."""
    return f"({f'{plain} ' * least}{plain}* ({escape} {plain}*)*) {_BEHIND_STRING}"


def _pattern(found: re.Match[str]) -> str:
    """A rule for a pattern. The library would drop what JSON escapes from its matches, or escape nothing where nothing
    else is left."""
    pattern, rule = found["pattern"], found["rule"]
    repeated = _REPEATED_CLASS.fullmatch(pattern)
    if repeated is None or int(repeated[3]) <= _FEW:
        return f'{rule} ::= Regex("{_apart(pattern)}")'
    pattern = f"{repeated[1]}{{{repeated[2]},}}$"
    return f'{_bounded(rule, int(repeated[3]))} ::= (Regex("{_apart(pattern)}")) {_BEHIND_STRING}'


def _apart(pattern: str) -> str:
    """The same pattern with an empty group at either end of every alternative.

    The library (0.2.8) lets a group that may be left out, or comes again, share its first and last state with what
    stands there. Where that is repeated, the group can be left out and repeated all the same: 1(a5+)? matched 15.
    """
    first = int(pattern.startswith("^"))
    apart = f"{pattern[:first]}(){_ENDS.sub(_with_empty_groups, pattern[first:])}"
    return apart if apart.endswith("()$") else f"{apart}()"


def _with_empty_groups(found: re.Match[str]) -> str:
    if found["opens"]:
        return f"{found[0]}()"
    if found["closes"]:
        return f"(){found[0]}"
    return "()|()" if found["parts"] else found[0]
