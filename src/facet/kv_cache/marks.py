"""Chooses where checkpoints will be kept along the prompts that are being computed.

A checkpoint can only be taken while the computation passes its position: a little later the window has moved on. So the
positions are chosen when a request enters:

    end of prompt         the same prompt again, or the next turn of a chat whose reply comes back edited
    where others branched the part this prompt shares with an earlier one, which may well be a system prompt
    powers of two windows something to fall back to in a long prompt; the first one serves all shorter prefixes

A position inside a span of media that attends both ways moves to the beginning of the span.

Ends of turns are not among them: the manager adds those when it releases a seat.

Until its last mark is passed, a prompt is *under way*: a request with the same prompt should wait for it.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facet.kv_cache.prefix_chain import TOKENS_PER_LINK, PrefixChain
from facet.kv_cache.prefix_index import Passage
from facet.kv_layout import KVLayout

NEVER = np.iinfo(np.int64).max
PromptName = tuple[int, bytes]


@dataclass(slots=True, eq=False)
class MarkedSeat:
    chain: PrefixChain
    passage: Passage
    positions: list[int]  # still to come, the next one last
    end: int  # nothing behind it is kept
    prompt: PromptName | None


class Marks:
    """The marks of every seat, and per seat the next one."""

    def __init__(self, layout: KVLayout, max_num_seqs: int) -> None:
        windows = [group.window for group in layout.groups if group.window is not None]
        self._window = max(windows) if windows else None
        self._seats: dict[int, MarkedSeat] = {}
        self._under_way: Counter[PromptName] = Counter()
        self._next = np.full(max_num_seqs, NEVER, np.int64)

    def set(self, seat: int, chain: PrefixChain, *, num_computed: int, passage: Passage, end: int = NEVER) -> None:
        wanted = mark_positions(min(len(chain), end + 1), self._window, passage.known_until)
        positions = sorted({chain.end_before_cut(position) for position in wanted})
        positions = [position for position in positions if position > num_computed]
        prompt = prompt_name(chain) if positions else None
        self._seats[seat] = MarkedSeat(chain, passage, positions[::-1], end, prompt)
        if prompt is not None:
            self._under_way[prompt] += 1
        self._set_next(seat)

    def get(self, seat: int) -> MarkedSeat | None:
        return self._seats.get(seat)

    def is_under_way(self, prompt: PromptName) -> bool:
        return prompt in self._under_way

    def clear(self, seat: int) -> None:
        marked = self._seats.pop(seat, None)
        if marked is not None:
            self._arrive(marked)
        self._next[seat] = NEVER

    def due(self, seats: NDArray[np.int64], num_computed: NDArray[np.int64]) -> list[int]:
        """The seats that have computed up to their next mark or beyond."""
        due: list[int] = seats[self._next[seats] <= num_computed].tolist()
        return due

    def pass_until(self, seat: int, num_computed: int) -> list[int]:
        """Take off the marks of a seat up to `num_computed`."""
        positions = self._seats[seat].positions
        passed = []
        while positions and positions[-1] <= num_computed:
            passed.append(positions.pop())
        self._set_next(seat)
        return passed

    def _set_next(self, seat: int) -> None:
        marked = self._seats[seat]
        if not marked.positions:
            self._arrive(marked)
        self._next[seat] = marked.positions[-1] if marked.positions else NEVER

    def _arrive(self, marked: MarkedSeat) -> None:
        if marked.prompt is not None:
            self._under_way[marked.prompt] -= 1
            if self._under_way[marked.prompt] == 0:
                del self._under_way[marked.prompt]
            marked.prompt = None


def prompt_name(chain: PrefixChain) -> PromptName | None:
    """What equal prompts have in common, and others only if they differ in the last few tokens alone.

    None: too short to be kept.
    """
    return (len(chain), chain.digests[-1]) if len(chain) > TOKENS_PER_LINK else None


def mark_positions(num_prompt: int, window: int | None, known_until: int) -> list[int]:
    """Ascending positions, at most up to the last token but one: the last is always computed again."""
    last = num_prompt - 1
    positions = {last}
    if known_until > 0:
        positions.add(min(known_until, last))
    if window is not None:
        position = window
        while position < last:
            positions.add(position)
            position *= 2
    return sorted(positions)
