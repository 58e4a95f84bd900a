"""Computes how many blocks a request needs, for start-up sizing, admission and every step.

A step computes `num_scheduled` tokens on top of `num_computed` ones. Per group it touches the blocks over

    global    [0                         , num_computed + num_scheduled)
    sliding   [num_computed - window + 1 , num_computed + num_scheduled)      never below 0

because the first new token sees `window` tokens, itself included. Nothing else is ever held for a request.

    window 5, blocks of 4, computed 13, scheduled 6:    reads 9..12, writes 13..18: blocks 2, 3, 4

        block 0     block 1     block 2     block 3     block 4
      |.. .. .. ..|.. .. .. ..|..  9 10 11|12 13 14 15|16 17 18 ..|

Page 0 is the scratch block, so a pool of `num_blocks` pages can give `num_blocks - 1` to requests.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from facet.errors import CapacityError
from facet.kv_layout import KVGroup, KVLayout

# The arithmetic is the same for one request and for an array of them.
Count = TypeVar("Count", int, NDArray[np.int64])


def block_range(group: KVGroup, num_computed: Count, num_scheduled: Count | int) -> tuple[Count, Count]:
    """The block indices [first, end) that a step touches."""
    end = -(-(num_computed + num_scheduled) // group.tokens_per_block)
    reach = num_computed * 0 if group.window is None else num_computed - (group.window - 1)
    first = reach * (reach > 0) // group.tokens_per_block
    return first, end


def peak_blocks(layout: KVLayout, *, num_tokens: int, num_in_flight: int) -> tuple[int, ...]:
    """The most blocks per group that a request has while `num_tokens` are computed, at most `num_in_flight` in a step.

    A stretch of n tokens that starts anywhere touches one block more than n - 1 tokens fill.
    """
    peaks = []
    for group in layout.groups:
        whole = -(-num_tokens // group.tokens_per_block)
        if group.window is None:
            peaks.append(whole)
        else:
            length = min(group.window - 1 + num_in_flight, num_tokens)
            peaks.append(min(whole, -(-(length - 1) // group.tokens_per_block) + 1))
    return tuple(peaks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a request needs, and what is available."""

    num_tokens: int
    blocks_per_group: tuple[int, ...]
    num_blocks_available: int

    @property
    def num_blocks(self) -> int:
        return sum(self.blocks_per_group)

    @property
    def fits(self) -> bool:
        return self.num_blocks <= self.num_blocks_available


def need_of(layout: KVLayout, num_blocks: int, *, num_tokens: int, num_in_flight: int = 1) -> Need:
    """What a request of `num_tokens` needs to run at all: alone, and token by token where memory is that tight.

    `num_in_flight` is more than one where so many of its tokens must be computed in one step.
    """
    return Need(
        num_tokens=num_tokens,
        blocks_per_group=peak_blocks(layout, num_tokens=num_tokens, num_in_flight=num_in_flight),
        num_blocks_available=num_blocks - 1,
    )


def longest_request(layout: KVLayout, num_blocks: int, *, num_in_flight: int = 1) -> int | None:
    """The most tokens one request can have in a pool of its own, computed `num_in_flight` at a time.

    None: any number. A cache without global layers forgets as fast as it learns.
    """

    def fits(num_tokens: int) -> bool:
        return sum(peak_blocks(layout, num_tokens=num_tokens, num_in_flight=num_in_flight)) < num_blocks

    low, high = 0, num_blocks * max(group.tokens_per_block for group in layout.groups)
    if fits(high):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How many sequences of one length a pool holds at once."""

    num_sequences: int
    num_tokens: int
    blocks_per_sequence: tuple[int, ...]  # per group, while it decodes
    num_blocks_in_flight: int  # shared by all: what one full step computes on top of the windows
    num_blocks_available: int


def sequences_that_fit(layout: KVLayout, num_blocks: int, *, num_tokens: int, max_num_batched_tokens: int) -> Fit:
    """How many sequences fit. Each needs its blocks; the tokens of a step are in flight once, however many sequences
    share it."""
    steady = peak_blocks(layout, num_tokens=num_tokens, num_in_flight=1)
    in_flight = min(num_tokens, max_num_batched_tokens)
    extra = sum(peak_blocks(layout, num_tokens=num_tokens, num_in_flight=in_flight)) - sum(steady)
    available = num_blocks - 1
    return Fit(
        num_sequences=max(0, (available - extra) // sum(steady)),
        num_tokens=num_tokens,
        blocks_per_sequence=steady,
        num_blocks_in_flight=extra,
        num_blocks_available=available,
    )


def blocks_for(layout: KVLayout, *, num_sequences: int, num_tokens: int, max_num_batched_tokens: int) -> int:
    """The size of the pool for which `sequences_that_fit` gives `num_sequences`, including the scratch block."""
    fit = sequences_that_fit(layout, 1, num_tokens=num_tokens, max_num_batched_tokens=max_num_batched_tokens)
    return 1 + num_sequences * sum(fit.blocks_per_sequence) + fit.num_blocks_in_flight


def require_fit(layout: KVLayout, num_blocks: int, *, max_model_len: int) -> None:
    """Refuses a pool in which a request of the longest allowed length could never run."""
    need = need_of(layout, num_blocks, num_tokens=max_model_len)
    if not need.fits:
        page_mib = layout.total_page_bytes / 2**20
        raise CapacityError(
            f"One request of max_model_len = {max_model_len} tokens needs {need.num_blocks} cache blocks "
            f"({need.num_blocks * page_mib:.0f} MiB), but {need.num_blocks_available} are available "
            f"({need.num_blocks_available * page_mib:.0f} MiB). Give the cache more memory, or set "
            f"--max-model-len to {longest_request(layout, num_blocks)} or less."
        )
