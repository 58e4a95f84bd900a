"""Writes a structural tag in the form in which the grammar library gets it."""

import json
from typing import Any

from facet.sampling.json_grammar import json_grammar


def structural_tag_source(source: str, *, any_whitespace: bool) -> str:
    """The tag with a grammar in place of each schema, so that JSON is the same here as where nothing surrounds it."""
    return json.dumps(_without_schemas(json.loads(source), any_whitespace))


def _without_schemas(value: Any, any_whitespace: bool) -> Any:
    if isinstance(value, list):
        return [_without_schemas(item, any_whitespace) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "json_schema":
        grammar = json_grammar(json.dumps(value["json_schema"]), any_whitespace=any_whitespace)
        return {"type": "grammar", "grammar": grammar}
    return {name: _without_schemas(item, any_whitespace) for name, item in value.items()}
