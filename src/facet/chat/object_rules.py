"""Writes the grammar of an object in Gemma's call syntax: its keys, their order, and when it may close.

The rules walk through states. With few properties a state is the set of those already written, so that they may come
in any order; with more of them that would be too many states, and they come in the order in which the template shows
them to the model.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from facet.chat.grammar_rules import BARE_KEY, MAX_KEY_CHARACTERS, GrammarRules, literal, one_of, regex

# 2^5 states; a call has a handful of arguments, and models write them in an order of their own.
MAX_PROPERTIES_IN_ANY_ORDER = 5

_KEY_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789"
_WRITTEN_BARE = re.compile(r"[\w.$@/-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectShape:
    values: Mapping[str, str]  # by property, the expression of its value
    required: frozenset[str]
    other_value: str | None  # of properties that are not named; None: there are none
    min_properties: int
    max_properties: int | None


def object_rule(shape: ObjectShape, rules: GrammarRules) -> str:
    """The expression of an object. The caller has checked that the shape can be satisfied."""
    pairs = {name: f"{key(name, rules)} {value}" for name, value in shape.values.items()}
    more = None
    if shape.other_value is not None and (shape.max_properties is None or not pairs):
        more = _other_pairs(shape, rules)
    if not pairs:
        if more is None:
            return literal("{}")
        return f'"{{" {more} "}}"' if shape.min_properties else f'"{{" ({more})? "}}"'
    names = sorted(pairs, key=lambda name: (name.lower(), name))
    is_ordered = len(names) > MAX_PROPERTIES_IN_ANY_ORDER
    most = len(names) if shape.max_properties is None else shape.max_properties

    def next_names(used: frozenset[str]) -> list[str]:
        """The names that may come now and still leave room for the required ones."""
        left = [name for name in names if name not in used]
        if is_ordered:
            last = max((names.index(name) for name in used), default=-1)
            left = names[last + 1 :]
            first_required = next((place for place, name in enumerate(left) if name in shape.required), len(left))
            left = left[: first_required + 1]
        return [name for name in left if len(used | {name} | shape.required) <= most]

    def may_close(used: frozenset[str]) -> bool:
        return used >= shape.required and len(used) >= shape.min_properties

    return _object_of_states(
        pairs, next_names, may_close, more, rules, _same_state(shape, names) if is_ordered else None
    )


def key(name: str, rules: GrammarRules) -> str:
    """A key and its colon; delimited like a string where it cannot stand bare."""
    if _WRITTEN_BARE.fullmatch(name):
        return literal(f"{name}:")
    return f'{rules.quote} {literal(name)} {rules.quote} ":"'


def _same_state(shape: ObjectShape, names: list[str]) -> Callable[[frozenset[str]], frozenset[str]]:
    """What a state is made of: since properties come in order, only the last one matters, and how many there are where
    their number is bounded."""

    def state_of(used: frozenset[str]) -> frozenset[str]:
        if shape.max_properties is not None or shape.min_properties > len(shape.required):
            return used
        last = max(used, key=names.index)
        return frozenset(name for name in names[: names.index(last)] if name in shape.required) | {last}

    return state_of


def _object_of_states(
    pairs: Mapping[str, str],
    next_names: Callable[[frozenset[str]], list[str]],
    may_close: Callable[[frozenset[str]], bool],
    more: str | None,
    rules: GrammarRules,
    state_of: Callable[[frozenset[str]], frozenset[str]] | None,
) -> str:
    after: dict[frozenset[str], str] = {}

    def rest(used: frozenset[str]) -> str:
        """The rule of what follows once these properties are written."""
        state = used if state_of is None else state_of(used)
        if state not in after:
            ends = ['"}"', *([f'"," {more} "}}"'] if more else [])] if may_close(state) else []
            goes_on = [f'"," {pairs[name]} {rest(state | {name})}' for name in next_names(state)]
            after[state] = rules.add(one_of([*ends, *goes_on]))
        return after[state]

    nothing: frozenset[str] = frozenset()
    begins = [f"{pairs[name]} {rest(frozenset((name,)))}" for name in next_names(nothing)]
    ends = ['"}"', *([f'{more} "}}"'] if more else [])] if may_close(nothing) else []
    return rules.add(f'"{{" {one_of([*ends, *begins])}')


def _other_pairs(shape: ObjectShape, rules: GrammarRules) -> str:
    names = [name for name in shape.values if all(character in _KEY_CHARACTERS for character in name)]
    pattern = _names_other_than(frozenset(names)) if names else BARE_KEY
    name = rules.add(regex(pattern), max_characters=MAX_KEY_CHARACTERS)
    pair = rules.add(f'{name} ":" {shape.other_value}')
    times = "*" if shape.max_properties is None else f"{{0,{shape.max_properties - 1}}}"
    return f'{pair} ("," {pair}){times}'


def _names_other_than(names: frozenset[str], *, is_first: bool = True) -> str:
    """A regular expression, letter by letter, of all keys except these."""
    heads = {name[0] for name in names if name}
    if not heads and not is_first:
        # Only the empty rest is forbidden here, if anything.
        return "[A-Za-z0-9_]+" if "" in names else "[A-Za-z0-9_]*"
    letters = _KEY_CHARACTERS[:-10] if is_first else _KEY_CHARACTERS
    parts = []
    if free := "".join(letter for letter in letters if letter not in heads):
        parts.append(f"[{free}][A-Za-z0-9_]*")
    for head in sorted(heads):
        if head in letters:
            tails = frozenset(name[1:] for name in names if name.startswith(head))
            parts.append(head + _names_other_than(tails, is_first=False))
    is_optional = not is_first and "" not in names
    return f"({'|'.join(parts)}){'?' if is_optional else ''}"
