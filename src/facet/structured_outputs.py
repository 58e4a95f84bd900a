"""`StructuredOutputsParams`: the form that a request wants its answer in, under vLLM's names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from facet.errors import RequestError

_FIELD = "structured_outputs"
_CONSTRAINTS = ("json", "regex", "choice", "grammar", "structural_tag")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """One constraint. A schema may be given as a mapping or as text; text is stored, so a value can be hashed."""

    json: Mapping[str, Any] | str | None = None  # a JSON schema
    regex: str | None = None
    choice: Sequence[str] | None = None  # the answer is one of these
    grammar: str | None = None  # in GBNF or Lark's notation
    json_object: bool | None = None  # any JSON object
    structural_tag: Mapping[str, Any] | str | None = None  # text with tagged parts, in xgrammar's notation
    # Whether JSON may have blanks and line breaks anywhere; None: as the engine is set up. Alone, it is about the JSON
    # that `response_format` asks for.
    any_whitespace: bool | None = None
    # vLLM's. True is stored as `any_whitespace=False`; False leaves it to the engine, as None does.
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        for name in ("json_object", "any_whitespace", "disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(value := getattr(self, name), bool | None):
                raise RequestError(f"structured_outputs.{name} must be true or false, not {value!r}.", field=_FIELD)
        self._settle_whitespace()
        if self.disable_additional_properties:
            raise RequestError(
                "structured_outputs.disable_additional_properties is not supported. Write additionalProperties: false "
                "into the schema.",
                field=_FIELD,
            )
        object.__setattr__(self, "disable_additional_properties", None)
        given = self._constraints()
        if len(given) > 1 or (not given and self.any_whitespace is None):
            named = f": {', '.join(given)}" if given else ""
            raise RequestError(
                "structured_outputs needs one of json, regex, choice, grammar, structural_tag and json_object, not "
                f"{len(given)} of them{named}.",
                field=_FIELD,
            )
        for name in ("json", "structural_tag"):
            if isinstance(value := getattr(self, name), Mapping):
                object.__setattr__(self, name, _as_json(value, name))
        if isinstance(self.choice, Sequence) and not isinstance(self.choice, str):
            object.__setattr__(self, "choice", tuple(self.choice))

    @property
    def is_constraint(self) -> bool:
        """Whether there is more than `any_whitespace`."""
        return bool(self._constraints())

    def _settle_whitespace(self) -> None:
        if self.whitespace_pattern is not None:
            raise RequestError(
                "structured_outputs.whitespace_pattern is not supported. Leave it out: JSON then has no white space "
                "between its tokens, or any with any_whitespace.",
                field=_FIELD,
            )
        if self.disable_any_whitespace:
            if self.any_whitespace:
                raise RequestError(
                    "structured_outputs has any_whitespace and disable_any_whitespace. Leave one of them out.",
                    field=_FIELD,
                )
            object.__setattr__(self, "any_whitespace", False)
        object.__setattr__(self, "disable_any_whitespace", None)

    def _constraints(self) -> list[str]:
        given = [name for name in _CONSTRAINTS if getattr(self, name) is not None]
        return [*given, "json_object"] if self.json_object else given


def _as_json(value: Mapping[str, Any], name: str) -> str:
    try:
        return json.dumps(dict(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"structured_outputs.{name} cannot be written as JSON: {error}.", field=_FIELD) from None
