"""Merges JSON schemas that must all hold, and finds schemas that exclude each other.

Knows keywords and nothing of grammars. Both err on the safe side: what is not understood is refused, and schemas that
are not proven to exclude each other are taken to overlap.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
Refuse = Callable[[str], Exception]

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")

_LARGEST = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_SMALLEST = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}
# They say something to the reader and nothing about the value.
ANNOTATIONS = {
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "$anchor", "$defs", "definitions", "strict", "discriminator", "propertyOrdering"),
}


def merge(first: Schema, second: Schema, refuse: Refuse) -> dict[str, Any]:
    """A schema that holds exactly where both hold."""
    if "additionalProperties" in first or "additionalProperties" in second:
        names, more = set(first.get("properties", {})), set(second.get("properties", {}))
        closed = (
            first.get("additionalProperties", True) is not True or second.get("additionalProperties", True) is not True
        )
        if closed and names != more and names and more:
            raise refuse("schemas that must hold together and name different properties beside additionalProperties")
    merged = dict(first)
    for keyword, value in second.items():
        if keyword not in merged or keyword in ANNOTATIONS or merged[keyword] == value:
            merged.setdefault(keyword, value)
        elif keyword == "properties":
            both = {
                name: merge_any(merged[keyword][name], value[name], refuse) for name in value if name in merged[keyword]
            }
            merged[keyword] = {**merged[keyword], **value, **both}
        elif keyword == "required":
            merged[keyword] = list(dict.fromkeys([*merged[keyword], *value]))
        elif keyword == "type":
            merged[keyword] = sorted(_common_types(_as_list(merged[keyword]), _as_list(value)))
            if not merged[keyword]:
                raise refuse(f"a value that is both {first['type']} and {value}")
        elif keyword == "enum":
            merged[keyword] = [item for item in merged[keyword] if item in value]
        elif keyword in _LARGEST:
            merged[keyword] = max(merged[keyword], value)
        elif keyword in _SMALLEST:
            merged[keyword] = min(merged[keyword], value)
        elif keyword == "additionalProperties" and True in (merged[keyword], value):
            merged[keyword] = value if merged[keyword] is True else merged[keyword]
        elif keyword == "items":
            merged[keyword] = merge_any(merged[keyword], value, refuse)
        else:
            raise refuse(f"two different {keyword} that must hold together")
    return merged


def merge_any(first: Any, second: Any, refuse: Refuse) -> Any:
    if first is True or second is True:
        return second if first is True else first
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        raise refuse("a schema that nothing satisfies")
    if {"$ref", "anyOf", "oneOf", "allOf"} & (set(first) | set(second)):
        return {"allOf": [first, second]}
    return merge(first, second, refuse)


def exclude_each_other(first: Schema, second: Schema) -> bool:
    """Whether no value can satisfy both, as far as types, constants and what tells objects apart can show it."""
    types = [set(_as_list(schema.get("type", list(TYPES)))) for schema in (first, second)]
    constants = [constants_of(schema) for schema in (first, second)]
    if constants[0] is not None and constants[1] is not None:
        return not any(item in constants[1] for item in constants[0])
    if not _common_types(types[0], types[1]):
        return True
    if types[0] != {"object"} or types[1] != {"object"}:
        return False
    for here, there in ((first, second), (second, first)):
        properties = there.get("properties", {})
        for name in here.get("required", ()):
            if there.get("additionalProperties") is False and name not in properties:
                return True
            mine, its = here.get("properties", {}).get(name), properties.get(name)
            if isinstance(mine, Mapping) and isinstance(its, Mapping) and exclude_each_other(mine, its):
                return True
    return False


def constants_of(schema: Schema) -> list[Any] | None:
    """The only values a schema allows, where it lists them."""
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if "enum" in schema else None


def type_of(value: Any) -> str:
    """The type of a JSON value, by its name in schemas."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


def _common_types(first: Sequence[str] | set[str], second: Sequence[str] | set[str]) -> set[str]:
    """The types that both allow; an integer is a number too."""
    common = set(first) & set(second)
    if ("integer" in first and "number" in second) or ("number" in first and "integer" in second):
        common |= {"integer"}
    return common - {"integer"} if "number" in common else common


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
