"""Makes the grammar of tool calls that are written as JSON (json_tools.py), by models without tokens for calls.

    {"name":"get_weather","parameters":{"city":"Paris"}}

Nothing marks where such a call begins, so text and calls cannot take turns under a grammar: an answer that must follow
the schemas is calls from its first character on, or else text from beginning to end.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from facet.chat.answer_grammar import json_schema_grammar, prepared_schema
from facet.chat.structural_tags import structural_tag_grammar
from facet.chat.tool_choice import ToolUse
from facet.errors import RequestError
from facet.grammar_spec import GrammarSpec

_FIELD = "tools"
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_PLAIN_VALUES = ("enum", "const", "default", "examples")
_NAMED_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")  # by names of any kind
# A text that no reader takes for JSON or for a code block with JSON in it.
_TEXT = ({"type": "regex", "pattern": r"[^ \t\r\n\[{`]"}, {"type": "any_text"})


def json_call_grammar(use: ToolUse, *, parallel: bool = True, any_whitespace: bool = False) -> GrammarSpec | None:
    """What an answer must look like. None: there are no tools to call, or nothing was promised about calls.

    required: one call or a list of them. named: likewise, all calls being of that tool. auto with strict tools, or with
    tools that may not be called: the same or text. Without `parallel` there is one call, and no list.
    """
    functions = [tool["function"] for tool in use.callable_tools]
    if use.choice.mode == "named":
        functions = [function for function in functions if function["name"] == use.choice.name]
    if not functions or use.choice.mode == "none" or not use.is_strict:
        return None
    schema = _calls_schema(functions, use.custom, parallel=parallel)
    if use.choice.mode != "auto":
        return json_schema_grammar(schema, any_whitespace=any_whitespace, field=_FIELD)
    calls = {"type": "json_schema", "json_schema": schema}
    answer = {"type": "or", "elements": [calls, {"type": "sequence", "elements": list(_TEXT)}]}
    return structural_tag_grammar(
        {"type": "structural_tag", "format": answer}, any_whitespace=any_whitespace, field=_FIELD
    )


def _calls_schema(
    functions: Sequence[Mapping[str, Any]], custom: Mapping[str, str | None], *, parallel: bool
) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for number, function in enumerate(functions):
        name = function["name"]
        if custom.get(name) is not None:
            raise RequestError(
                f"The tool {name!r} has a grammar in Lark's notation, which calls of this model cannot follow: they "
                "are JSON. Leave the grammar out, or give a regular expression.",
                field=_FIELD,
            )
        parameters = _parameters(function)
        prepared_schema(parameters, _FIELD)  # refuses what cannot be honoured, and what is nested too deeply
        definitions[f"parameters{number}"] = _moved(parameters, f"#/$defs/parameters{number}")
        definitions[f"call{number}"] = {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": {"$ref": f"#/$defs/parameters{number}"}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        calls.append({"$ref": f"#/$defs/call{number}"})
    choices = [*calls, {"type": "array", "items": {"anyOf": calls}, "minItems": 1}] if parallel else calls
    return {"$defs": definitions, "anyOf": choices}


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = function.get("parameters") or _NO_PARAMETERS
    if "type" not in schema and not {"$ref", "anyOf", "oneOf", "allOf"} & set(schema):
        schema = {**schema, "type": "object"}
    if schema.get("type", "object") != "object":
        raise RequestError(
            f"Calls of the tool {function['name']!r} cannot be constrained to its schema: it has parameters of type "
            f"{schema['type']!r}; they are an object.",
            field=_FIELD,
        )
    return schema


def _moved(part: Any, place: str) -> Any:
    """A schema as it must read at another place of the document, to which its references then point."""
    if isinstance(part, list):
        return [_moved(item, place) for item in part]
    if not isinstance(part, Mapping):
        return part
    moved: dict[str, Any] = {}
    for keyword, value in part.items():
        if keyword in _NAMED_SCHEMAS and isinstance(value, Mapping):
            moved[keyword] = {name: _moved(schema, place) for name, schema in value.items()}
        else:
            moved[keyword] = value if keyword in _PLAIN_VALUES else _moved(value, place)
    if isinstance(target := part.get("$ref"), str) and target.startswith("#"):
        moved["$ref"] = place + target[1:]
    return moved
