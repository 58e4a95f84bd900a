"""The Jinja environment that tells text from outside apart from the template's own (see outside_text.py).

A template behaves in it as in the plain one. Wherever Jinja makes a string from others, the result is wrapped again, so
that text from outside still compares as it was sent; a filter with its own string code gets what was sent, and its
whole result counts as text from outside.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from facet.chat.outside_text import OutsideText, as_sent, from_outside, has_outside_text, shifted, traced, unshifted

# These only pass values on, or use the methods and operators of the strings they are given.
_PASSES_ON = frozenset(
    {
        *("abs", "attr", "batch", "capitalize", "count", "d", "default", "dictsort", "first", "groupby", "items"),
        *("join", "last", "length", "list", "lower", "map", "max", "min", "random", "reject", "rejectattr"),
        *("replace", "reverse", "round", "select", "selectattr", "slice", "sort", "string", "sum", "trim", "unique"),
        "upper",
    }
)


class TracingEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with strings traced through it."""

    intercepted_binops = frozenset({"%"})  # "+" and "*" are methods of OutsideText whichever side it is on

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters |= {
            name: _traced_filter(function) if name in _PASSES_ON else _computed_as_sent(function)
            for name, function in self.filters.items()
        }
        self.filters["safe"] = _itself  # nothing is escaped here
        self.filters["tojson"] = to_json
        self.filters[_CONCATENATED] = _concatenated
        self.filters[_COMPARED] = _compared
        self.tests["in"] = _is_in

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Joins what a macro, a block or the template as a whole has written."""
        return traced("".join(parts))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if type(owner) is str and has_outside_text(args):
            __obj = getattr(OutsideText(owner), __obj.__name__)
        result = super().call(__context, __obj, *args, **kwargs)
        return traced(result) if type(result) is str else result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        result = super().call_binop(context, operator, left, right)
        return traced(result) if type(result) is str else result

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Rewriting(self).visit(super()._parse(source, name, filename))
        return template


_CONCATENATED, _COMPARED = "facet_concatenated", "facet_compared"


class _Rewriting(NodeTransformer):
    """`~` and comparisons, which Jinja compiles to Python's own, as filters of this environment."""

    def __init__(self, environment: TracingEnvironment) -> None:
        self._environment = environment

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(nodes.List(node.nodes), _CONCATENATED, node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._filter(node.expr, _COMPARED, node)
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._filter(node.expr, _COMPARED, node)
        return node

    def _filter(self, value: nodes.Expr, name: str, place: nodes.Node) -> nodes.Filter:
        made = nodes.Filter(value, name, [], [], None, None, lineno=place.lineno)
        made.set_environment(self._environment)
        return made


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON. Jinja's own filter escapes "<" and "&" for web pages, which a model must not see."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    # The library has left alone what it did not recognise: shifted characters, which stand in strings alone.
    return traced(_TO_ESCAPE[bool(ensure_ascii)].sub(functools.partial(_escaped, ensure_ascii=ensure_ascii), text))


_QUOTES = shifted('"\\')
_TO_ESCAPE = {
    False: re.compile(f"[{_QUOTES}]"),
    True: re.compile(f"[\x7f-\U0003ffff{_QUOTES}\U0004007f-\U0010ffff]"),
}


def _escaped(match: re.Match[str], *, ensure_ascii: bool) -> str:
    character = unshifted(match[0])
    escape = json.dumps(character, ensure_ascii=ensure_ascii)[1:-1]
    return shifted(escape) if character != match[0] else escape


def _concatenated(values: Iterable[Any]) -> str:
    return traced("".join(map(str, values)))


def _compared(value: Any) -> Any:
    # Inside of containers OutsideText compares as it should; next to a plain string on its left or right it may not.
    return as_sent(value) if isinstance(value, OutsideText) else value


def _itself(value: Any) -> Any:
    return value


def _is_in(value: Any, container: Any) -> bool:
    return _compared(value) in _compared(container)


def _traced_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def apply(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        return traced(result) if type(result) is str else result

    return apply


def _computed_as_sent(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def apply(*arguments: Any, **options: Any) -> Any:
        if not has_outside_text([*arguments, *options.values()]):
            return function(*arguments, **options)
        return from_outside(function(*map(as_sent, arguments), **as_sent(options)))

    return apply
