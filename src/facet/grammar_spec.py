"""The form that an answer must have, as a frozen value that travels with its request.

It holds the source of the grammar and when in the answer it applies, with every special token resolved to its id, so it
is made where the tokenizer is known. Knows neither how a grammar is compiled nor how a token is chosen.
"""

import sys
from dataclasses import dataclass
from typing import Literal

from facet.errors import RequestError
from facet.thoughts import ThoughtTokens

GrammarKind = Literal[
    "json_object", "json_schema", "regex", "choice", "ebnf", "structural_tag", "tool_calls", "tool_calls_or_json"
]

# A source longer than this would occupy the compiler for seconds; a schema of a hundred tools has a tenth of it.
MAX_SOURCE_CHARACTERS = 1 << 20
# How many sources kinds have that do not have one, and how that is said.
_NUM_SOURCES = {
    "json_object": (0, 0, "0"),
    "choice": (1, sys.maxsize, "one or more"),
    "tool_calls_or_json": (1, 2, "1 or 2"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """One grammar and when it applies.

    Without a trigger the whole answer, up to its end-of-sequence token, is bound. With one, text is free until the
    trigger token is sampled; from there to the end of the grammar the answer is bound, and then free again. Either way
    a thought may come first where the tokens of thoughts are given; nothing inside it is bound, or taken for a trigger.
    """

    kind: GrammarKind
    # json_object: none. choice: the choices. tool_calls: a Lark grammar over token ids (chat/tool_grammar.py).
    # tool_calls_or_json: the same, and the schema that JSON must satisfy, if it is more than an object.
    # structural_tag: JSON (chat/structural_tags.py). Others: one text, as the client gave it.
    sources: tuple[str, ...] = ()
    trigger_token_id: int | None = None  # part of the grammar: its first token
    may_trigger_again: bool = True  # after a triggered part has ended, another may come
    thought: ThoughtTokens | None = None  # None: the answer begins at once
    any_whitespace: bool = False  # JSON alone: blanks and line breaks where the model likes them
    field: str = "structured_outputs"  # the part of the client's request that errors name

    def __post_init__(self) -> None:
        least, most, wanted = _NUM_SOURCES.get(self.kind, (1, 1, "1"))
        if not least <= len(self.sources) <= most:
            raise RequestError(
                f"A grammar of kind {self.kind} has {len(self.sources)} sources, but needs {wanted}.", field=self.field
            )
        length = sum(map(len, self.sources))
        if length > MAX_SOURCE_CHARACTERS:
            raise RequestError(
                f"{self.field} makes a grammar of {length} characters, but at most {MAX_SOURCE_CHARACTERS} are "
                "accepted. Give a smaller schema, or fewer tools.",
                field=self.field,
            )

    @property
    def key(self) -> tuple[GrammarKind, tuple[str, ...], bool]:
        """A key of what the compiled grammar depends on."""
        return self.kind, self.sources, self.any_whitespace
