"""Writes grammar rules, in Gemma's call syntax, for the values of a JSON schema.

Every value the rules allow satisfies the schema; not every value that satisfies it is allowed. Properties that a schema
does not name are written only where it says what they are, numbers have a bounded length, and an optional property may
always be left out. A keyword that cannot be enforced is refused by name, never ignored; annotations, and keywords that
JSON Schema does not know, are ignored, as it prescribes.
"""

import json
from collections.abc import Mapping
from typing import Any

from facet.chat.grammar_rules import GrammarRules, literal, one_of, regex
from facet.chat.object_rules import MAX_PROPERTIES_IN_ANY_ORDER, ObjectShape, key, object_rule
from facet.chat.scalar_rules import bounds_of, integer_pattern, number_pattern, string_pattern
from facet.chat.schema_merge import ANNOTATIONS, TYPES, Schema, constants_of, exclude_each_other, merge, type_of
from facet.errors import RequestError

MAX_DEPTH = 48
MAX_PROPERTIES = 200

_REFUSED = (
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "patternProperties", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef"),
)


class SchemaRules:
    """Writes rules for the values of one root schema, within which its references point."""

    def __init__(self, root: Any, rules: GrammarRules, *, name: str, field: str) -> None:
        self._root = root
        self._rules = rules
        self._name = name  # of the tool, for messages
        self._field = field
        self._referenced: dict[str, str] = {}
        self._depth = 0

    def root(self) -> str:
        """The expression of the root schema's object."""
        schema = self._root
        if not isinstance(schema, Mapping):
            raise self._refuse(f"parameters that are {schema!r} and not a schema object")
        if "type" not in schema and not {"$ref", "anyOf", "oneOf", "allOf"} & set(schema):
            schema = {**schema, "type": "object"}
        if "type" in schema and schema["type"] != "object":
            raise self._refuse(f"parameters of type {schema['type']!r}; they are an object")
        return self.value(schema)

    def value(self, schema: Any) -> str:
        """An expression that may stand in a sequence."""
        if schema is True or (isinstance(schema, Mapping) and not set(schema) - ANNOTATIONS):
            return self._rules.any_value()
        if not isinstance(schema, Mapping):
            raise self._refuse("a schema that is false, which nothing satisfies" if schema is False else repr(schema))
        if "$ref" in schema and not set(schema) - ANNOTATIONS - {"$ref"}:
            return self._reference(schema["$ref"])
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refuse(f"a schema nested more than {MAX_DEPTH} deep, or that refers to itself without an end")
        try:
            alternatives = self._alternatives(schema)
            for keyword in ("anyOf", "oneOf"):
                if not set(schema) - ANNOTATIONS - {keyword}:
                    # Branch by branch, so that one that is a reference stays one: that is how recursion ends.
                    return one_of([self.value(branch) for branch in self._list(schema, keyword)])
            return one_of([self._plain(plain) for plain in alternatives])
        finally:
            self._depth -= 1

    def _reference(self, pointer: Any) -> str:
        """One rule for each schema referred to, so that a schema may contain itself."""
        if pointer not in self._referenced:
            target = self._resolve(pointer)
            name = self._referenced[pointer] = self._rules.reserve()
            outer, self._depth = self._depth, 0
            self._rules.define(name, self.value(target))
            self._depth = outer
        return self._referenced[pointer]

    def _resolve(self, pointer: Any) -> Any:
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            raise self._refuse(f"$ref {pointer!r}; references within the schema, like #/$defs/name, are")
        found = self._root
        for part in pointer.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, Mapping) and part in found:
                found = found[part]
            else:
                raise self._refuse(f"$ref {pointer!r}, which points to nothing")
        return found

    def _alternatives(self, schema: Schema, via: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """The schema as schemas without references and combinations, one of which must hold."""
        rest = {
            keyword: value for keyword, value in schema.items() if keyword not in {"$ref", "allOf", "anyOf", "oneOf"}
        }
        if refused := next((keyword for keyword in _REFUSED if keyword in rest), None):
            raise self._refuse(refused)
        found = [rest]
        parts: list[tuple[Any, tuple[str, ...]]] = [(part, via) for part in self._list(schema, "allOf")]
        if "$ref" in schema:
            if schema["$ref"] in via:
                raise self._refuse(f"$ref {schema['$ref']!r}, which leads back to itself")
            parts.append((self._resolve(schema["$ref"]), (*via, schema["$ref"])))
        for part, way in parts:
            found = self._both(found, self._alternatives_of(part, way))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                branches = [self._alternatives_of(branch, via) for branch in self._list(schema, keyword)]
                if not branches:
                    raise self._refuse(f"an empty {keyword}")
                if keyword == "oneOf":
                    self._check_exclusive(branches)
                found = self._both(found, [plain for branch in branches for plain in branch])
        return found

    def _alternatives_of(self, schema: Any, via: tuple[str, ...]) -> list[dict[str, Any]]:
        if schema is True:
            return [{}]
        if not isinstance(schema, Mapping):
            raise self._refuse(f"{schema!r} in the place of a schema")
        if len(via) > MAX_DEPTH:
            raise self._refuse(f"references more than {MAX_DEPTH} deep")
        return self._alternatives(schema, via)

    def _both(self, first: list[dict[str, Any]], second: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [merge(one, other, self._refuse) for one in first for other in second]

    def _check_exclusive(self, branches: list[list[dict[str, Any]]]) -> None:
        for place, branch in enumerate(branches):
            for other in branches[place + 1 :]:
                if not all(exclude_each_other(one, another) for one in branch for another in other):
                    raise self._refuse("oneOf whose branches may hold at once; anyOf is")

    def _plain(self, schema: Schema) -> str:
        """A schema without references and combinations."""
        constants = constants_of(schema)
        types = self._types(schema)
        if constants is not None:
            return self._constants(constants, types, schema)
        if len(types) == len(TYPES):
            return self._rules.any_value()
        return one_of([self._of_type(name, schema) for name in types])

    def _of_type(self, name: str, schema: Schema) -> str:
        if name == "object":
            return self._object(schema)
        if name == "array":
            return self._array(schema)
        if name == "string":
            pattern, max_characters = string_pattern(schema, self._field, self._refuse)
            return self._rules.add(self._rules.string(pattern, max_characters=max_characters))
        if name in ("integer", "number"):
            pattern = (
                integer_pattern(schema, self._refuse) if name == "integer" else number_pattern(schema, self._refuse)
            )
            return self._rules.add(regex(pattern))
        return '("true" | "false")' if name == "boolean" else '"null"'

    def _types(self, schema: Schema) -> list[str]:
        given = schema.get("type")
        if given is None:
            given = next((name for name, keywords in _TYPE_OF_KEYWORDS.items() if keywords & set(schema)), list(TYPES))
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not names or any(name not in TYPES for name in names):
            raise self._refuse(f"type {given!r}")
        return [*names, "null"] if schema.get("nullable") is True and "null" not in names else names

    def _constants(self, constants: list[Any], types: list[str], schema: Schema) -> str:
        if others := set(schema) & _ALL_KEYWORDS:
            raise self._refuse(f"enum or const together with {', '.join(sorted(others))}")
        kinds = {*types, "integer"} if "number" in types else set(types)
        allowed = [value for value in constants if type_of(value) in kinds]
        if not allowed:
            raise self._refuse(f"an enum without a value of type {' or '.join(types)}")
        return one_of([self._constant(value) for value in allowed])

    def _constant(self, value: Any) -> str:
        match value:
            case str():
                text = literal(value) if value else ""
                return f"{self._rules.quote} {text} {self._rules.quote}"
            case Mapping():
                pairs = [f"{key(name, self._rules)} {self._constant(item)}" for name, item in value.items()]
                return " ".join(['"{"', ' "," '.join(pairs), '"}"'])
            case list():
                return " ".join(['"["', ' "," '.join(map(self._constant, value)), '"]"'])
            case _:
                try:
                    return literal(json.dumps(value, allow_nan=False))
                except ValueError:
                    raise self._refuse(f"the constant {value}") from None

    def _object(self, schema: Schema) -> str:
        properties = schema.get("properties", {})
        required = self._list(schema, "required")
        more = schema.get("additionalProperties", False)
        if not isinstance(properties, Mapping):
            raise self._refuse(f"properties that are {properties!r}")
        if len(properties) > MAX_PROPERTIES:
            raise self._refuse(f"an object of {len(properties)} properties; {MAX_PROPERTIES} are")
        if "additionalProperties" not in schema and "properties" not in schema and not required:
            more = True  # an object of which nothing is said may hold anything
        schemas = dict(properties)
        for name in required:
            if name not in schemas:
                if schema.get("additionalProperties") is False:
                    raise self._refuse(f"required property {name!r}, which additionalProperties forbids")
                schemas[name] = schema.get("additionalProperties", True)
        low, high = bounds_of(schema, "minProperties", "maxProperties", self._refuse)
        num_named = len(schemas)
        high = None if high is not None and more is False and high >= num_named else high
        if high is not None and high < len(required):
            raise self._refuse("more required properties than maxProperties")
        if low > num_named and not (more is not False and low == 1):
            raise self._refuse(f"minProperties {low} of an object that names {num_named} properties")
        if num_named > MAX_PROPERTIES_IN_ANY_ORDER and (high is not None or low > len(required)):
            raise self._refuse("minProperties or maxProperties of an object of many properties")
        values = {}
        for name, child in schemas.items():
            if child is False and name not in required:
                continue  # a property that may not be there
            if not name or any(character < " " for character in name):
                raise self._refuse(f"a property named {name!r}")
            values[name] = self.value(child)
        if high == 0:
            return '"{}"'
        return object_rule(
            ObjectShape(
                values=values,
                required=frozenset(required),
                other_value=None if more is False else self.value(more),
                min_properties=low,
                max_properties=high,
            ),
            self._rules,
        )

    def _array(self, schema: Schema) -> str:
        low, high = bounds_of(schema, "minItems", "maxItems", self._refuse)
        items = schema.get("items", True)
        first = items if isinstance(items, list) else self._list(schema, "prefixItems")
        if isinstance(items, list):
            items = schema.get("additionalItems", True)
        if schema.get("uniqueItems") is True and (high is None or high > 1):
            raise self._refuse("uniqueItems")
        if high is not None and high < low:
            raise self._refuse(f"minItems {low} with maxItems {high}")
        if first:
            return self._tuple(first, items, low, high)
        if high == 0 or items is False:
            if low:
                raise self._refuse(f"minItems {low} of an array without items")
            return '"[]"'
        item = self.value(items)
        times = "*" if high is None and low <= 1 else f"{{{max(0, low - 1)},{'' if high is None else high - 1}}}"
        some = f'{item} ("," {item}){times}' if times != "{0,0}" else item
        return self._rules.add(f'"[" {some} "]"' if low else f'"[" ({some})? "]"')

    def _tuple(self, first: list[Any], items: Any, low: int, high: int | None) -> str:
        """An array whose first items have schemas of their own. All of those are written."""
        if high is not None and high < len(first):
            raise self._refuse(f"maxItems {high} of an array with {len(first)} prefixItems")
        written = ' "," '.join(self.value(child) for child in first)
        if items is False or high == len(first):
            if low > len(first):
                raise self._refuse(f"minItems {low} of an array of {len(first)} items")
            return self._rules.add(f'"[" {written} "]"')
        more = f'("," {self.value(items)})'
        least, most = max(0, low - len(first)), "" if high is None else high - len(first)
        return self._rules.add(f'"[" {written} {more}{{{least},{most}}} "]"')

    def _list(self, schema: Schema, keyword: str) -> list[Any]:
        value = schema.get(keyword, [])
        if not isinstance(value, list | tuple):
            raise self._refuse(f"{keyword} that is {value!r} and not a list")
        return list(value)

    def _refuse(self, what: str) -> RequestError:
        return RequestError(
            f"Calls of the tool {self._name!r} cannot be constrained to its schema: {what} is not supported there. "
            "Change the schema of its parameters.",
            field=self._field,
        )


_TYPE_OF_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
_ALL_KEYWORDS = set().union(*_TYPE_OF_KEYWORDS.values())
