"""Puts the results of parallel calls into the order of the calls.

Clients send results as they come, and every API pairs them with calls by id. Templates write the names of tools and no
ids, so that a model tells the results of two calls of one tool apart by their order alone.

Nothing is checked yet: messages may be anything.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

# A message and its place among those that the client sent.
Placed = tuple[int, object]


def in_order_of_calls(messages: Iterable[object]) -> Iterator[Placed]:
    """The messages. Those of tools in a row stand in the order of the calls of the assistant's turn before them."""
    calls: list[object] = []
    for role, group in itertools.groupby(enumerate(messages), key=lambda placed: _string(placed[1], "role")):
        row = list(group)
        yield from _results_in_order(row, calls) if role == "tool" else row
        calls = [call for _, message in row for call in _calls(message)] if role == "assistant" else []


def _results_in_order(results: Sequence[Placed], calls: Sequence[object]) -> Sequence[Placed]:
    """Results that name none of the calls come last, as they came. Where one has no id, the order stays the client's:
    it may be all that there is to tell."""
    numbers: dict[str, deque[int]] = {}  # of the calls, by id
    for number, call in enumerate(calls):
        if (call_id := _string(call, "id")) is not None:
            numbers.setdefault(call_id, deque()).append(number)
    keys: list[int] = []
    for _, result in results:
        call_id = _string(result, "tool_call_id")
        if call_id is None:
            return results
        same_id = numbers.get(call_id)
        keys.append(same_id.popleft() if same_id else len(calls))
    return [results[index] for index in sorted(range(len(results)), key=keys.__getitem__)]


def _calls(message: object) -> Sequence[object]:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    return calls if isinstance(calls, list | tuple) else ()


def _string(value: object, field: str) -> str | None:
    """The value of a field, where it is a string."""
    found = value.get(field) if isinstance(value, Mapping) else None
    return found if isinstance(found, str) else None
