"""Decides which waiting requests start now.

The head of the queue comes first, and no request overtakes a head that does not fit yet, so that a long prompt cannot
starve. A request is admitted only if all of it fits, besides what the admitted requests have still to allocate: the
whole prompt in global groups, and a window plus a chunk in flight in sliding ones. So a prompt that has begun can be
finished; only growing outputs can run out of memory, and then the last request in the queue's order is preempted.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from facet.kv_cache.accountant import block_range, peak_blocks
from facet.kv_cache.block_pool import NO_BLOCKS
from facet.kv_cache.marks import PromptName, prompt_name
from facet.kv_cache.prefix_index import PrefixHit
from facet.kv_cache.schedule import Entrant
from facet.kv_cache.view import CacheView, WhatIf
from facet.media_span import MediaSpan, largest_chunk, least_chunk, longest_length
from facet.scheduler.encoding import SpanRows, StepEncoding
from facet.scheduler.limits import Limits
from facet.scheduler.queues import QueuesView
from facet.scheduler.request_state import RequestState
from facet.scheduler.time_left import TimeLeft


class TurnEntry(NamedTuple):
    """A line of the schedule's parallel arrays, in their order."""

    seat: int
    request_number: int
    num_computed: int
    num_scheduled: int
    num_drafts: int
    samples: bool
    num_logit_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A request that enters, and what it computes in its first step."""

    entrant: Entrant
    entry: TurnEntry
    encoded: tuple[MediaSpan, ...]  # of its prompt, what towers make the rows of


def admit(
    queues: QueuesView,
    cache: CacheView,
    limits: Limits,
    encoding: StepEncoding,
    time: TimeLeft,
    num_scheduled: NDArray[np.int64],
    budget: int,
    num_available: int,
) -> list[Turn]:
    """Admits the requests that fit besides the running ones, which compute `num_scheduled` tokens of their own."""
    turns: list[Turn] = []
    if budget == 0 or not queues.free_seats:
        return turns
    memory = cache.what_if()
    memory.move_windows(queues.order, queues.seats.num_computed[queues.order])
    memory.num_available = num_available - still_to_allocate(queues, cache, limits, num_scheduled)
    entering: set[PromptName | None] = set()
    for state, seat in zip(queues.waiting, queues.free_seats, strict=False):
        if budget == 0 or state.num_pending > 0:  # a token sampled before its preemption is not known yet
            break
        chain = state.searchable_chain
        hit = None if chain is None else cache.match(chain)
        if chain is not None and (hit is None or hit.position < len(chain) - 1):
            prompt = prompt_name(chain)
            if prompt is not None and (prompt in entering or cache.is_under_way(prompt)):
                break  # the same prompt, say for another sample, is being computed: soon it is in the cache
            entering.add(prompt)
        is_alone = len(queues.order) == 0 and not turns
        num_tokens = _try_enter(state, hit, budget, memory, limits, encoding, time, is_alone=is_alone)
        if num_tokens == 0 and hit is not None and is_alone:
            # Keeping a hit's blocks costs memory too: rather compute all of it than never start.
            hit = None
            num_tokens = _try_enter(state, hit, budget, memory, limits, encoding, time, is_alone=is_alone)
        if num_tokens == 0:
            break
        budget -= num_tokens
        turns.append(_turn(state, seat, hit, num_tokens))
    return turns


def _try_enter(
    state: RequestState,
    hit: PrefixHit | None,
    budget: int,
    memory: WhatIf,
    limits: Limits,
    encoding: StepEncoding,
    time: TimeLeft,
    *,
    is_alone: bool,
) -> int:
    """How many tokens the request may compute now; all it will need is taken off `memory`. 0: it does not fit."""
    num_computed = 0 if hit is None else hit.position
    num_shared = 0 if hit is None else sum(len(group.shared) for group in hit.blocks)
    claim = NO_BLOCKS if hit is None else memory.claim_of(hit)
    num_available = memory.num_available - len(claim)

    def num_needed(in_flight: int) -> int:
        return sum(peak_blocks(memory.layout, num_tokens=state.num_known, num_in_flight=in_flight)) - num_shared

    least = longest_length(state.uncuttable)
    in_flight = min(state.num_known - num_computed, limits.max_num_batched_tokens)
    while is_alone and in_flight > least and num_needed(in_flight) > num_available:
        in_flight = max(least, in_flight // 2)  # no other request could make room: take smaller steps
    num_tokens = min(in_flight, budget)
    if num_computed < state.num_logits_done < state.num_logits_wanted:  # why: see tokens_wanted
        num_tokens = min(num_tokens, state.num_logits_done - num_computed)
    num_tokens = time.most_rows(num_computed, num_tokens, least_chunk(state.uncuttable, num_computed))
    num_tokens = largest_chunk(state.uncuttable, num_computed, num_tokens)
    num_tokens = encoding.largest_chunk(state.encoded, num_computed, num_tokens)
    if num_tokens == 0 or num_needed(in_flight) > num_available:
        return 0
    encoding.take(SpanRows(state.encoded, num_computed, num_tokens))
    time.take(num_computed, num_tokens)
    memory.claim(claim)
    memory.num_available -= num_needed(in_flight)
    return num_tokens


def still_to_allocate(queues: QueuesView, cache: CacheView, limits: Limits, num_scheduled: NDArray[np.int64]) -> int:
    """Blocks that running requests will need, beyond this step, to finish computing the tokens they have."""
    num_tokens = queues.seats.num_tokens[queues.order]
    num_computed = queues.seats.num_computed[queues.order]
    unfinished = num_tokens - num_computed - num_scheduled > 1
    lacking = 0
    for tokens, computed, scheduled in zip(
        num_tokens[unfinished].tolist(),
        num_computed[unfinished].tolist(),
        num_scheduled[unfinished].tolist(),
        strict=True,
    ):
        in_flight = min(tokens - computed, limits.max_num_batched_tokens)
        peaks = peak_blocks(cache.layout, num_tokens=tokens, num_in_flight=in_flight)
        for group, peak in zip(cache.layout.groups, peaks, strict=True):
            first, end = block_range(group, computed, scheduled)
            lacking += max(0, peak - (end - first))
    return lacking


def _turn(state: RequestState, seat: int, hit: PrefixHit | None, num_tokens: int) -> Turn:
    num_computed = 0 if hit is None else hit.position
    samples = num_computed + num_tokens == state.num_known
    every_logit = state.num_logits_done <= num_computed < state.num_logits_wanted
    entrant = Entrant(
        seat=seat,
        request_number=state.number,
        request=state.request,
        output_token_ids=tuple(state.output_token_ids),
        is_resumed=state.was_admitted,
        chain=state.chain,
        hit=hit,
    )
    num_logit_rows = num_tokens if every_logit else int(samples)
    return Turn(
        entrant, TurnEntry(seat, state.number, num_computed, num_tokens, 0, samples, num_logit_rows), state.encoded
    )
