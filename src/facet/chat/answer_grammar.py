"""Makes a `GrammarSpec` from what a client asks for: JSON, a schema, a regular expression, choices or a grammar.

Simple mistakes are refused here, before the request is sent; those that only compiling can find, by the engine.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from facet.chat.json_schemas import schema_for_compiler
from facet.chat.patterns import MAX_REPEAT, check_regex
from facet.chat.schema_merge import exclude_each_other
from facet.errors import RequestError
from facet.grammar_spec import GrammarSpec
from facet.thoughts import ThoughtTokens

# The compiler passes over these without a word, so that values could come out that the schema forbids.
_REFUSED = (
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
)
_MAX_DEPTH = 64


def json_object_grammar(
    *, thought: ThoughtTokens | None = None, any_whitespace: bool = False, field: str = "response_format"
) -> GrammarSpec:
    """A grammar of any JSON object."""
    return GrammarSpec(kind="json_object", thought=thought, any_whitespace=any_whitespace, field=field)


def json_schema_grammar(
    schema: Any,
    *,
    thought: ThoughtTokens | None = None,
    any_whitespace: bool = False,
    field: str = "response_format",
) -> GrammarSpec:
    """JSON that satisfies a schema, given as an object or as its text. Properties it does not name are not written."""
    return GrammarSpec(
        kind="json_schema",
        sources=(json.dumps(prepared_schema(schema, field)),),
        thought=thought,
        any_whitespace=any_whitespace,
        field=field,
    )


def prepared_schema(schema: Any, field: str) -> Any:
    """A schema as the compiler takes it; refuses one that it would not honour."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except RecursionError:
            raise RequestError(f"{field} has a schema that is nested too deeply.", field=field) from None
        except ValueError as error:
            raise RequestError(f"{field} has a schema that is not JSON: {error}.", field=field) from None
    if not isinstance(schema, Mapping):
        raise RequestError(f"{field} has a schema that is {schema!r} and not an object.", field=field)
    for part in _schemas(schema, field, 0):
        _check_keywords(part, field)
    return schema_for_compiler(schema, field)


def regex_grammar(
    pattern: Any, *, thought: ThoughtTokens | None = None, field: str = "structured_outputs"
) -> GrammarSpec:
    """A grammar of text that a regular expression matches as a whole."""
    text = _text(pattern, "a regular expression", field)
    check_regex(text, field)
    return GrammarSpec(kind="regex", sources=(text,), thought=thought, field=field)


def choice_grammar(
    choices: Any, *, thought: ThoughtTokens | None = None, field: str = "structured_outputs"
) -> GrammarSpec:
    """A grammar whose answer is one of several texts."""
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise RequestError(f"{field} needs a list of one or more choices, not {choices!r}.", field=field)
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise RequestError(f"{field} has choices that are not texts, or empty ones.", field=field)
    return GrammarSpec(kind="choice", sources=tuple(choices), thought=thought, field=field)


def ebnf_grammar(
    source: Any, *, thought: ThoughtTokens | None = None, field: str = "structured_outputs"
) -> GrammarSpec:
    """A grammar in GBNF, whose first rule is `root`, or in Lark's notation, whose first rule is `start`."""
    return GrammarSpec(kind="ebnf", sources=(_text(source, "a grammar", field),), thought=thought, field=field)


def _text(value: Any, what: str, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{field} needs {what} as text, not {value!r}.", field=field)
    return value


def _schemas(schema: Any, field: str, depth: int) -> Iterator[Mapping[str, Any]]:
    """A schema and all within it."""
    if depth > _MAX_DEPTH:
        raise RequestError(f"{field} has a schema nested more than {_MAX_DEPTH} deep.", field=field)
    if not isinstance(schema, Mapping):
        return
    yield schema
    for keyword, value in schema.items():
        inner: Any = ()
        if keyword in {"properties", "$defs", "definitions", "patternProperties"} and isinstance(value, Mapping):
            inner = value.values()
        elif keyword in {"items", "additionalProperties", "propertyNames", "unevaluatedProperties"}:
            inner = value if isinstance(value, list) else [value]
        elif keyword in {"anyOf", "oneOf", "allOf", "prefixItems"} and isinstance(value, list):
            inner = value
        for part in inner:
            yield from _schemas(part, field, depth + 1)


def _check_keywords(schema: Mapping[str, Any], field: str) -> None:
    unsupported = next((keyword for keyword in _REFUSED if schema.get(keyword, False) is not False), None)
    if unsupported is None:
        empty = (keyword for keyword in ("anyOf", "oneOf", "allOf") if schema.get(keyword) == [])
        unsupported = next((f"an empty {keyword}" for keyword in empty), None)
    if unsupported is None and len(schema.get("allOf", ())) > 1:
        unsupported = "allOf of several schemas"
    if unsupported is None and "pattern" in schema and {"minLength", "maxLength"} & set(schema):
        unsupported = "pattern together with minLength or maxLength"
    if unsupported is None and not _branches_exclude_each_other(schema.get("oneOf", ())):
        unsupported = "oneOf whose branches may hold at once; anyOf is"
    least = schema.get("minLength")
    if unsupported is None and isinstance(least, int) and least > MAX_REPEAT:
        unsupported = f"minLength above {MAX_REPEAT}"
    if unsupported is not None:
        raise RequestError(
            f"{field} has a schema with {unsupported.removesuffix('; anyOf is')}, which cannot be honoured"
            f"{'; use anyOf' if unsupported.endswith('anyOf is') else ''}.",
            field=field,
        )
    if isinstance(schema.get("pattern"), str):
        check_regex(schema["pattern"], field)


def _branches_exclude_each_other(branches: Any) -> bool:
    known = [branch for branch in branches if isinstance(branch, Mapping)] if isinstance(branches, list) else []
    return all(
        "$ref" in one or "$ref" in other or exclude_each_other(one, other)
        for place, one in enumerate(known)
        for other in known[place + 1 :]
    )
