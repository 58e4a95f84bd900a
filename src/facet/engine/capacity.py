"""Computes what a cache holds, for start-up lines and for `facet plan`, so that both agree.

The arithmetic is in `kv_cache/accountant.py`; this module turns bytes into pages and pages into figures.
"""

from dataclasses import dataclass

from facet.errors import CapacityError
from facet.kv_cache.accountant import (
    Fit,
    blocks_for,
    longest_request,
    peak_blocks,
    require_fit,
    sequences_that_fit,
)
from facet.kv_layout import KVGroup, KVLayout
from facet.quantity import shown_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A pool of pages, and the bounds of what runs in it."""

    layout: KVLayout
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.layout.total_page_bytes

    def sequences(self, num_tokens: int) -> Fit:
        """How many requests of this length fit at once, with room for a full step."""
        return sequences_that_fit(
            self.layout,
            self.num_blocks,
            num_tokens=num_tokens,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )

    @property
    def longest_request(self) -> int | None:
        """The most tokens one request can have if nothing else runs; None: any number."""
        return longest_request(self.layout, self.num_blocks)

    def tokens(self, group: KVGroup) -> int:
        """The tokens of a group if it had all pages."""
        return (self.num_blocks - 1) * group.tokens_per_block

    def window_bytes(self, num_tokens: int) -> int:
        """What a long request needs for its windows, whatever its length: the blocks of its sliding groups."""
        steady = peak_blocks(self.layout, num_tokens=num_tokens, num_in_flight=1)
        num_blocks = sum(
            count for count, group in zip(steady, self.layout.groups, strict=True) if group.window is not None
        )
        return num_blocks * self.layout.total_page_bytes

    def lines(self) -> list[str]:
        """The lines printed at start-up."""
        page, groups = self.layout.total_page_bytes, self.layout.groups
        per_block = " or ".join(f"{group.tokens_per_block} {group.kind} tokens" for group in groups)
        in_all = " or ".join(f"{self.tokens(group):,} {group.kind} tokens" for group in groups)
        return [
            f"KV cache: {shown_bytes(self.num_bytes)}, {self.num_blocks} pages of {page / 2**10:.0f} KiB; "
            f"a page holds {per_block}, the whole cache {in_all}.",
            *((_dtype_line(self.layout),) if self.layout.is_quantized else ()),
            f"At the full context of {self.max_model_len} tokens, {self._requests_that_fit()}; --max-num-seqs allows "
            f"{self.max_num_seqs}.",
        ]

    def _requests_that_fit(self) -> str:
        num_requests = self.sequences(self.max_model_len).num_sequences
        if num_requests == 0:  # one does, or the engine would not start
            return f"one request fits alone, in steps of fewer than {self.max_num_batched_tokens} tokens"
        return "1 request fits at once" if num_requests == 1 else f"{num_requests} requests fit at once"


def capacity_of(
    layout: KVLayout,
    num_bytes: int,
    *,
    takes_all: bool,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
) -> Capacity:
    """The pool of `num_bytes`. Refused if a request of the longest allowed length could never run.

    `takes_all`: the memory is meant for this, as a number given by the user or a share of a GPU. Memory that is merely
    free on a machine is not all taken: twice what running requests can need leaves as much again for cached prefixes.
    """
    num_blocks = max(0, num_bytes) // layout.total_page_bytes
    if not takes_all:
        most = blocks_for(
            layout,
            num_sequences=2 * max_num_seqs,
            num_tokens=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        num_blocks = min(num_blocks, most)
    require_room(layout, num_blocks, max_model_len)
    return Capacity(
        layout=layout,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
    )


def require_room(layout: KVLayout, num_blocks: int, max_model_len: int) -> None:
    page_bytes = layout.total_page_bytes
    if num_blocks < 2 or longest_request(layout, num_blocks) == 0:
        raise CapacityError(
            f"{_size(num_blocks * page_bytes)} is left for keys and values, but a single token needs "
            f"{_size((1 + len(layout.groups)) * page_bytes)}, with its page of each kind. Give the cache more memory, "
            "or use a smaller model."
        )
    require_fit(layout, num_blocks, max_model_len=max_model_len)


def _size(num_bytes: int) -> str:
    """A number of bytes in words, in a unit in which it is not zero."""
    if num_bytes == 0:
        return "Nothing"
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:.1f} KiB"


def _dtype_line(layout: KVLayout) -> str:
    kinds = "; ".join(f"{group.kind} layers as {', '.join(group.dtypes)}" for group in layout.groups)
    return f"Keys and values are stored quantized: {kinds}."
