"""Makes a `GrammarSpec` from a structural tag: text in which some parts, marked by tags, have a form of their own.

    {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f="], "tags": [
        {"type": "tag", "begin": "<f=get_weather>", "content": {"type": "json_schema", ...}, "end": "</f>"}]}}

The notation is xgrammar's, and so is an older one with `structures` and `triggers`, which is translated. Everything in
a tag is looked at here: its schemas and patterns are checked and rewritten like those of any other structured output,
and what names tokens instead of text is refused.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from facet.chat.answer_grammar import prepared_schema
from facet.chat.patterns import MAX_REPEAT, check_regex
from facet.errors import RequestError
from facet.grammar_spec import GrammarSpec
from facet.thoughts import ThoughtTokens

_MAX_DEPTH = 64
_TOKEN_FORMATS = frozenset({"token", "exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch"})


def structural_tag_grammar(
    tag: Any, *, thought: ThoughtTokens | None = None, any_whitespace: bool = False, field: str = "structured_outputs"
) -> GrammarSpec:
    """`tag` is an object or its text."""
    if isinstance(tag, str):
        try:
            tag = json.loads(tag)
        except RecursionError:
            raise RequestError(f"{field} has a structural tag that is nested too deeply.", field=field) from None
        except ValueError as error:
            raise RequestError(f"{field} has a structural tag that is not JSON: {error}.", field=field) from None
    if not isinstance(tag, Mapping):
        raise RequestError(f"{field} has a structural tag that is {tag!r} and not an object.", field=field)
    described = _from_structures(tag, field) if "structures" in tag else tag.get("format")
    source = {"type": "structural_tag", "format": _Reader(field).read(described, "format", 0)}
    return GrammarSpec(
        kind="structural_tag",
        sources=(json.dumps(source),),
        thought=thought,
        any_whitespace=any_whitespace,
        field=field,
    )


def _from_structures(tag: Mapping[str, Any], field: str) -> dict[str, Any]:
    structures, triggers = tag["structures"], tag.get("triggers")
    if not isinstance(structures, list) or not all(isinstance(item, Mapping) for item in structures):
        raise RequestError(f"{field}.structures must be a list of objects.", field=field)
    tags = []
    for item in structures:
        content = {"type": "json_schema", "json_schema": item.get("schema")}
        tags.append({"type": "tag", "begin": item.get("begin"), "content": content, "end": item.get("end")})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


class _Reader:
    """Checks formats and copies them."""

    def __init__(self, field: str) -> None:
        self._field = field

    def read(self, given: Any, where: str, depth: int) -> dict[str, Any]:
        if depth > _MAX_DEPTH:
            self._refuse(where, f"is nested more than {_MAX_DEPTH} deep")
        if not isinstance(given, Mapping):
            self._refuse(where, "must be an object with a type")
        kind, copy = given.get("type"), dict(given)
        if kind in _TOKEN_FORMATS:
            self._refuse(where, f"has the type {kind!r}. Tokens cannot be named here: describe text")
        elif kind == "json_schema":
            self._read_schema(copy, where)
        elif kind == "regex":
            check_regex(self._text(copy, "pattern", where), self._field)
        elif kind == "grammar":
            self._text(copy, "grammar", where)
        elif kind == "tag":
            self._read_tag(copy, where, depth)
        elif kind in ("sequence", "or"):
            copy["elements"] = self._each(copy, "elements", where, depth)
        elif kind in ("triggered_tags", "tags_with_separator"):
            copy["tags"] = self._each(copy, "tags", where, depth)
            if any(tag["type"] != "tag" for tag in copy["tags"]):
                self._refuse(f"{where}.tags", "holds something that is no tag")
        elif kind in ("optional", "plus", "star", "repeat"):
            copy["content"] = self.read(copy.get("content"), f"{where}.content", depth + 1)
            if kind == "repeat" and not (type(copy.get("max")) is int and copy["max"] <= MAX_REPEAT):
                self._refuse(f"{where}.max", f"must be a number up to {MAX_REPEAT}")
        elif kind == "dispatch":
            self._read_dispatch(copy, where, depth)
        elif kind not in ("const_string", "any_text"):
            self._refuse(where, f"has the type {kind!r}, which is not supported")
        return copy

    def _read_schema(self, copy: dict[str, Any], where: str) -> None:
        if copy.get("style", "json") != "json":
            self._refuse(where, f"has the style {copy['style']!r}. Only 'json' is supported")
        others = sorted(set(copy) - {"type", "json_schema", "style"})
        if others:
            self._refuse(where, f"has {others[0]!r}, which is not supported")
        copy["json_schema"] = prepared_schema(copy.get("json_schema"), self._field)

    def _read_tag(self, copy: dict[str, Any], where: str, depth: int) -> None:
        ends = copy.get("end")
        for name, texts in (("begin", [copy.get("begin")]), ("end", ends if isinstance(ends, list) else [ends])):
            if not texts or not all(isinstance(text, str) for text in texts):
                self._refuse(f"{where}.{name}", "must be text")
        copy["content"] = self.read(copy.get("content"), f"{where}.content", depth + 1)

    def _read_dispatch(self, copy: dict[str, Any], where: str, depth: int) -> None:
        rules = copy.get("rules")
        if not isinstance(rules, list) or not all(isinstance(rule, list) and len(rule) == 2 for rule in rules):
            self._refuse(f"{where}.rules", "must be a list of pairs")
        copy["rules"] = [
            [text, self.read(inner, f"{where}.rules[{i}]", depth + 1)] for i, (text, inner) in enumerate(rules)
        ]

    def _each(self, copy: Mapping[str, Any], name: str, where: str, depth: int) -> list[dict[str, Any]]:
        items = copy.get(name)
        if not isinstance(items, list) or not items:
            self._refuse(f"{where}.{name}", "must be a list of one or more objects")
        return [self.read(item, f"{where}.{name}[{i}]", depth + 1) for i, item in enumerate(items)]

    def _text(self, copy: Mapping[str, Any], name: str, where: str) -> str:
        text = copy.get(name)
        if not isinstance(text, str) or not text:
            self._refuse(f"{where}.{name}", "must be text")
        return text

    def _refuse(self, where: str, fault: str) -> NoReturn:
        raise RequestError(f"The structural tag of {self._field} cannot be used: {where} {fault}.", field=self._field)
