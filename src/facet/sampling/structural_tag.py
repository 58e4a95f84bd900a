"""Writes a structural tag in the form in which the grammar library gets it."""

import json
from collections.abc import Callable
from typing import Any

from facet.sampling.json_grammar import json_grammar


def structural_tag_source(source: str, change: Callable[[str], str], *, any_whitespace: bool) -> str:
    """The tag with a grammar in place of each schema, so that JSON is the same here as where nothing surrounds it.
    `change` is applied to these grammars."""

    def grammar_of(schema: Any) -> str:
        return change(json_grammar(json.dumps(schema), any_whitespace=any_whitespace))

    return json.dumps(_without_schemas(json.loads(source), grammar_of))


def _without_schemas(value: Any, grammar_of: Callable[[Any], str]) -> Any:
    if isinstance(value, list):
        return [_without_schemas(item, grammar_of) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "json_schema":
        return {"type": "grammar", "grammar": grammar_of(value["json_schema"])}
    return {name: _without_schemas(item, grammar_of) for name, item in value.items()}
