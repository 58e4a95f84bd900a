"""Collects the rules of one grammar in Lark's notation with token ids: <[52]> is token 52.

Equal rules are written once, so that a schema used in many places costs as much as in one.
"""

import json

from facet.chat.number_ranges import ANY_NUMBER
from facet.chat.patterns import TEXT_CHARACTER

# What may stand bare as a key, and so what a key of an open object is made of.
BARE_KEY = "[A-Za-z_][A-Za-z0-9_]*"
MAX_KEY_CHARACTERS = 64


class GrammarRules:
    def __init__(self, string_delimiter: int) -> None:
        self.quote = token(string_delimiter)
        self._bodies: dict[str, str] = {}
        self._names: dict[tuple[str, int | None], str] = {}
        self._limits: dict[str, int] = {}
        self._has_any_value = False
        self._included: list[str] = []

    def include(self, rules: str) -> None:
        """Adds rules that were written elsewhere, under names that none of these has."""
        self._included.append(rules)

    def add(self, body: str, *, max_characters: int | None = None) -> str:
        """The name of a rule with this body, and of text no longer than that.

        A bound is better given this way than as {0,100} in a pattern: there every count is a state of its own, for
        which the compiler goes through the whole vocabulary.
        """
        if (body, max_characters) not in self._names:
            name = self._names[body, max_characters] = self.reserve()
            self._bodies[name] = body
            if max_characters is not None:
                self._limits[name] = max_characters
        return self._names[body, max_characters]

    def reserve(self) -> str:
        """A name whose body comes later, with `define`: rules may refer to themselves."""
        name = f"rule_{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        self._bodies[name] = body

    def any_value(self) -> str:
        if not self._has_any_value:
            self._has_any_value = True
            self._bodies["any_value"] = (
                f'any_string | {regex(ANY_NUMBER)} | "true" | "false" | "null" | any_array | any_object'
            )
            self._bodies["any_string"] = self.string(f"{TEXT_CHARACTER}*")
            self._bodies["any_array"] = '"[" (any_value ("," any_value)*)? "]"'
            self._bodies["any_object"] = '"{" (any_pair ("," any_pair)*)? "}"'
            self._bodies["any_pair"] = f'{self.add(regex(BARE_KEY), max_characters=MAX_KEY_CHARACTERS)} ":" any_value'
        return "any_value"

    def string(self, pattern: str, *, max_characters: int | None = None) -> str:
        """A delimited string whose text matches."""
        text = regex(pattern) if max_characters is None else self.add(regex(pattern), max_characters=max_characters)
        return f"{self.quote} {text} {self.quote}"

    def text(self, start: str) -> str:
        """The whole grammar."""
        lines = [f"start: {start}"]
        for name, body in self._bodies.items():
            limit = f"[max_chars={self._limits[name]}]" if name in self._limits else ""
            lines.append(f"{name}{limit}: {body}")
        return "\n".join([*lines, *self._included]) + "\n"


def token(token_id: int) -> str:
    return f"<[{token_id}]>"


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def regex(pattern: str) -> str:
    """A regular expression as rules have it: slashes delimit it; one inside is escaped, unless it is already."""
    escaped, index = "", 0
    while index < len(pattern):
        step = 2 if pattern[index] == "\\" else 1
        escaped += "\\/" if pattern[index] == "/" else pattern[index : index + step]
        index += step
    return f"/{escaped}/"


def one_of(alternatives: list[str]) -> str:
    """An expression that may stand in a sequence."""
    unique = list(dict.fromkeys(alternatives))
    return unique[0] if len(unique) == 1 else f"({' | '.join(unique)})"
