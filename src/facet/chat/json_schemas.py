"""Rewrites a JSON schema so that the grammar compiler honours all of what it says about strings.

Strings in JSON are written with escapes, which the compiler knows of only where a schema says nothing else: its own
formats and the patterns of clients would let quotes and control characters through as they are.
"""

from collections.abc import Mapping
from typing import Any

from facet.chat.json_patterns import json_text_pattern
from facet.chat.scalar_rules import FORMATS
from facet.errors import RequestError

_MAX_NESTING = 256  # of JSON; a schema within a schema is two or three deep

# Their names are the client's, and what looks like a keyword there is none.
_NAMED_SCHEMAS = {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"}
_PLAIN_VALUES = {"enum", "const", "default", "examples"}
_ABOUT_STRINGS = {"pattern", "minLength", "maxLength"}
_ABOUT_TYPES = {"type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"}

_POINTER = "(?:/(?:[^/~]|~[01])*)*"
_FORMATS = {**FORMATS, "json-pointer": _POINTER, "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})"}


def schema_for_compiler(schema: Any, field: str) -> Any:
    """A copy of a schema, or of a list of them. A reference may point at any place, so every place is looked at."""
    return _copy(schema, field, 0)


def _copy(part: Any, field: str, depth: int) -> Any:
    if depth > _MAX_NESTING:
        raise RequestError(f"{field} has a schema nested more than {_MAX_NESTING} deep.", field=field)
    if isinstance(part, list | tuple):
        return [_copy(item, field, depth + 1) for item in part]
    if not isinstance(part, Mapping):
        return part
    copy: dict[str, Any] = {}
    for keyword, value in _string_keywords(part).items():
        if keyword == "pattern" and isinstance(value, str):
            copy[keyword] = json_text_pattern(value)
        elif keyword in _NAMED_SCHEMAS and isinstance(value, Mapping):
            is_patterns = keyword == "patternProperties"
            copy[keyword] = {
                json_text_pattern(name) if is_patterns else name: _copy(inner, field, depth + 2)
                for name, inner in value.items()
            }
        else:
            copy[keyword] = value if keyword in _PLAIN_VALUES else _copy(value, field, depth + 1)
    return copy


def _string_keywords(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with a format spelled out, and with the type that its keywords are about."""
    if "format" in schema and _ABOUT_STRINGS & set(schema):
        # The compiler would ignore these for the format, which is an annotation.
        schema = {keyword: value for keyword, value in schema.items() if keyword != "format"}
    if isinstance(schema.get("format"), str) and schema["format"] in _FORMATS and "type" in schema:
        schema = {**schema, "pattern": f"^(?:{_FORMATS[schema['format']]})$"}
        del schema["format"]
    if _ABOUT_STRINGS & set(schema) and not _ABOUT_TYPES & set(schema):
        schema = {**schema, "type": "string"}
    return schema
