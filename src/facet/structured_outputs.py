"""`StructuredOutputsParams`: the form that a request wants its answer in, under vLLM's names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from facet.errors import RequestError

_FIELD = "structured_outputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """One constraint. A schema may be given as a mapping or as text; text is stored, so a value can be hashed."""

    json: Mapping[str, Any] | str | None = None  # a JSON schema
    regex: str | None = None
    choice: Sequence[str] | None = None  # the answer is one of these
    grammar: str | None = None  # in GBNF or Lark's notation
    json_object: bool | None = None  # any JSON object
    structural_tag: str | None = None  # known, and refused
    # Whether JSON may have blanks and line breaks anywhere; None: as the engine is set up. Alone, it is about the JSON
    # that `response_format` asks for.
    any_whitespace: bool | None = None

    def __post_init__(self) -> None:
        if self.structural_tag is not None:
            raise RequestError(
                "structured_outputs.structural_tag is not supported. Use json, regex, choice or grammar.", field=_FIELD
            )
        given = self._constraints()
        if len(given) > 1 or (not given and self.any_whitespace is None):
            named = f": {', '.join(given)}" if given else ""
            raise RequestError(
                "structured_outputs needs one of json, regex, choice, grammar and json_object, not "
                f"{len(given)} of them{named}.",
                field=_FIELD,
            )
        if isinstance(self.json, Mapping):
            object.__setattr__(self, "json", _as_json(self.json))
        if isinstance(self.choice, Sequence) and not isinstance(self.choice, str):
            object.__setattr__(self, "choice", tuple(self.choice))

    @property
    def is_constraint(self) -> bool:
        """Whether there is more than `any_whitespace`."""
        return bool(self._constraints())

    def _constraints(self) -> list[str]:
        given = [name for name in ("json", "regex", "choice", "grammar") if getattr(self, name) is not None]
        return [*given, "json_object"] if self.json_object else given


def _as_json(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            f"structured_outputs.json is a schema that cannot be written as JSON: {error}.", field=_FIELD
        ) from None
