"""Custom tools, which take text instead of JSON.

To the model such a tool is a function with one string, `input`. Between the delimiters of a string nothing is escaped,
so it writes the text as it is. The form of the text may be given by a regular expression, which becomes the string's
pattern, or by a grammar in Lark's notation, which becomes part of the grammar of the calls.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from facet.errors import RequestError

ARGUMENT: Final = "input"

_BEFORE_INPUT = f'{{"{ARGUMENT}":"'
_WHOLE_CHARACTERS = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')
# What a grammar may consist of. Directives (%ignore) would apply to the calls around it, and <[7]> names a token.
_LARK_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*)"
    r'|(?P<text>"(?:[^"\\\n]|\\.)*"i?|/(?:[^/\\\n]|\\.)+/[imslux]*)'
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>->|\.\.|[0-9]+|[:|()\[\]?*+~.!,{}])"
)


def as_function(tool: Mapping[Any, Any], where: str) -> tuple[dict[str, Any], str | None]:
    """A custom tool as a function, and the grammar of its input in Lark's notation, if it has one.

    Chat completions put what describes it one level deeper than the Responses API.
    """
    described = tool.get("custom", tool)
    if not isinstance(described, Mapping):
        raise RequestError(f"{where}.custom must be an object with a name.", field="tools")
    syntax, definition = _format(described.get("format"), where)
    text: dict[str, Any] = {"type": "string"}
    if syntax == "regex":
        text |= {"pattern": f"^(?:{definition})$", "description": f"Text that matches {definition}"}
    elif syntax == "lark":
        text["description"] = f"Text of this grammar: {definition}"
    function = {
        "name": described.get("name"),
        "description": described.get("description"),
        "parameters": {"type": "object", "properties": {ARGUMENT: text}, "required": [ARGUMENT]},
        "strict": syntax is not None,
    }
    return {"type": "function", "function": function}, definition if syntax == "lark" else None


def _format(given: object, where: str) -> tuple[str | None, str]:
    """The notation and the definition of a form; None: any text."""
    where = f"{where}.format"
    if given is None:
        return None, ""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or kind not in ("text", "grammar"):
        raise RequestError(f"{where} must be an object of the type 'text' or 'grammar'.", field="tools")
    if kind == "text":
        return None, ""
    grammar = given.get("grammar", given)
    syntax, definition = (
        (grammar.get("syntax"), grammar.get("definition")) if isinstance(grammar, Mapping) else (None, None)
    )
    if syntax not in ("lark", "regex") or not isinstance(definition, str) or not definition:
        raise RequestError(f"{where} needs a syntax, 'lark' or 'regex', and a definition as text.", field="tools")
    return syntax, definition


def renamed_lark(definition: str, prefix: str, name: str) -> tuple[str, str]:
    """The rules of a tool's grammar under names of their own, and the name of the rule it starts with."""
    parts, position, names = [], 0, set()
    while position < len(definition):
        token = _LARK_TOKEN.match(definition, position)
        if token is None:
            raise RequestError(
                f"The grammar of the tool {name!r} has {definition[position : position + 12]!r} at character "
                f"{position}. It may hold rules, terminals, strings and regular expressions, but no directives and no "
                "tokens.",
                field="tools",
            )
        position = token.end()
        if token["name"] is None:
            parts.append(token[0])
        else:
            names.add(token[0])
            parts.append(_renamed(token[0], prefix))
    if "start" not in names:
        raise RequestError(
            f"The grammar of the tool {name!r} has no rule 'start', with which it begins.", field="tools"
        )
    return "".join(parts), _renamed("start", prefix)


def _renamed(name: str, prefix: str) -> str:
    """A name with a prefix. Names in capitals are terminals, and stay so."""
    return f"{prefix.upper()}_{name}" if name.upper() == name else f"{prefix.lower()}_{name}"


class InputReader:
    """Reads the input of one call from its arguments, as they come in parts of a JSON object."""

    def __init__(self) -> None:
        self._unread = ""
        self._is_open = False  # the text has begun
        self._is_other = False  # these are no arguments of a custom tool: they are handed on as they are

    def push(self, fragment: str) -> str:
        """The text that became certain."""
        if self._is_other:
            return fragment
        self._unread += fragment
        if not self._is_open:
            if self._unread.startswith(_BEFORE_INPUT):
                self._unread, self._is_open = self._unread[len(_BEFORE_INPUT) :], True
            elif not _BEFORE_INPUT.startswith(self._unread):
                self._is_other = True
                return self._unread
            else:
                return ""
        whole = _WHOLE_CHARACTERS.match(self._unread)
        assert whole is not None, "nothing at all matches, too"
        self._unread = self._unread[whole.end() :]
        text: str = json.loads(f'"{whole[0]}"')
        return text


def whole_input(arguments: str) -> str:
    """The input of a call that has ended, or was cut off."""
    return InputReader().push(arguments)
