"""Finds stop strings in text that arrives in parts of any size.

Text is held back only while it could still be the beginning of a stop string, and the result does not depend
on how the text was cut into parts: the stop string that is complete first wins, and of several that end on
the same character the longest.

The search is one finite automaton over all stop strings (Aho and Corasick's). A state is the longest end of
the text so far that begins a stop string, so its depth is exactly what has to be held back. A character costs
the same, on average, however long the stop strings are.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from facet.errors import RequestError


@dataclass(slots=True)
class _State:
    depth: int
    next_states: dict[str, int] = field(default_factory=dict)
    fallback: int = 0  # the state of the longest proper end of this one that also begins a stop string
    stop_string: str | None = None  # the longest stop string that is an end of this state


class StopStrings:
    """A request's stop strings, prepared once and shared by its sequences."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        if "" in stop_strings:
            raise RequestError(
                "A stop string is empty, which would stop before the first word. Remove it.", field="stop"
            )
        self._states = [_State(depth=0)]
        for stop_string in stop_strings:
            self._add(stop_string)
        self._link_fallbacks()

    def advance(self, state: int, character: str) -> int:
        """The state after one more character; 0 is the start."""
        while state and character not in self._states[state].next_states:
            state = self._states[state].fallback
        return self._states[state].next_states.get(character, 0)

    def num_held(self, state: int) -> int:
        """How many of the last characters could still begin a stop string."""
        return self._states[state].depth

    def found(self, state: int) -> str | None:
        """The stop string that has just been completed, if one has."""
        return self._states[state].stop_string

    def _add(self, stop_string: str) -> None:
        state = 0
        for character in stop_string:
            next_states = self._states[state].next_states
            if character not in next_states:
                next_states[character] = len(self._states)
                self._states.append(_State(depth=self._states[state].depth + 1))
            state = next_states[character]
        self._states[state].stop_string = stop_string

    def _link_fallbacks(self) -> None:
        # Breadth first: a fallback is always shallower than its state, so it is complete when it is read.
        queue = deque(self._states[0].next_states.values())
        while queue:
            state = self._states[queue.popleft()]
            for character, child in state.next_states.items():
                self._states[child].fallback = self.advance(state.fallback, character)
                if self._states[child].stop_string is None:
                    self._states[child].stop_string = self._states[self._states[child].fallback].stop_string
                queue.append(child)


@dataclass(frozen=True, slots=True)
class StopScan:
    """The result of searching one part of the text."""

    text: str  # safe to hand out; never contains a stop string or the beginning of one
    stop_string: str | None  # the one that ended the sequence; what followed it in this part is dropped


class StopStringFinder:
    """The search state of one sequence."""

    def __init__(self, stop_strings: StopStrings) -> None:
        self._stop_strings = stop_strings
        self._state = 0
        self._held = ""

    def feed(self, text: str) -> StopScan:
        """Takes the next part. After a stop string was found the sequence is over: feed nothing more."""
        pending = self._held + text
        for position in range(len(self._held), len(pending)):
            self._state = self._stop_strings.advance(self._state, pending[position])
            stop_string = self._stop_strings.found(self._state)
            if stop_string is not None:
                self._held, self._state = "", 0
                return StopScan(pending[: position + 1 - len(stop_string)], stop_string)
        num_safe = len(pending) - self._stop_strings.num_held(self._state)
        self._held = pending[num_safe:]
        return StopScan(pending[:num_safe], None)

    def finish(self) -> str:
        """The sequence ended without a stop string: returns the text that was held back."""
        held, self._held, self._state = self._held, "", 0
        return held
