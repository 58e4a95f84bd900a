"""Owns the KV cache: block tables, the pool and the prefix index change only here.

    view()          what the scheduler may know while deciding
    commit(...)     allocates and frees blocks; the step may then be launched
    release(...)    a request left its seat
    give_back(...)  drafts were refused
    retire(step)    a step's work is done

Knows blocks and tokens; not why a request runs or ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facet.arena_picture import ArenaPicture
from facet.kv_cache.accountant import block_range
from facet.kv_cache.block_pool import BlockPool, Blocks
from facet.kv_cache.block_tables import BlockTables, Seats, TableEntries
from facet.kv_cache.marks import NEVER, Marks
from facet.kv_cache.picture import draw
from facet.kv_cache.prefix_chain import PrefixChain
from facet.kv_cache.prefix_index import NEW_GROUND, Passage, PrefixIndex
from facet.kv_cache.schedule import Entrant, Schedule
from facet.kv_cache.view import CacheView
from facet.kv_layout import KVLayout
from facet.step import NO_NEW_BLOCKS, Admission, NewBlocks, StepPlan, TableSlice

NO_PAGE_COPIES = np.zeros((0, 2), np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    num_blocks: int  # that requests can use
    num_blocks_in_tables: int
    num_blocks_by_kind: tuple[
        tuple[str, int], ...
    ]  # entries of the tables of each group; a shared block counts for each
    num_blocks_cached: int  # held by the prefix cache alone
    num_checkpoints: int
    num_prompt_tokens: int  # of admitted requests that could use the prefix cache, ever
    num_prompt_tokens_hit: int


class KVCacheManager:
    def __init__(
        self,
        layout: KVLayout,
        *,
        num_blocks: int,
        max_num_seqs: int,
        max_model_len: int,
        enable_prefix_caching: bool = True,
        keeps_answers: bool = True,
        ordered_on_one_stream: bool = True,
    ) -> None:
        """`keeps_answers`: also tokens that were generated serve prompts that begin with them."""
        self.layout = layout
        self.num_blocks = num_blocks
        # Today one stream orders all work, so a block may be written by the step after its last reader. Copies on a
        # stream of their own (to host memory, to another GPU) would have to retire first: False says so.
        self._ordered_on_one_stream = ordered_on_one_stream
        self._keeps_answers = keeps_answers
        self._pool = BlockPool(num_blocks)
        self._tables = BlockTables(layout, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self._prefixes = PrefixIndex(layout, self._pool) if enable_prefix_caching else None
        self._marks = Marks(layout, max_num_seqs)
        self._last_step = 0
        self._last_retired_step = 0
        self._num_prompt_tokens = 0
        self._num_prompt_tokens_hit = 0

    @property
    def caches_prefixes(self) -> bool:
        return self._prefixes is not None

    def view(self) -> CacheView:
        """The cache before the next step."""
        step = self._last_step + 1
        self._pool.advance_horizon(step - 1 if self._ordered_on_one_stream else self._last_retired_step)
        return CacheView(step, self.layout, self._pool, self._tables, self._prefixes, self._marks)

    def commit(self, schedule: Schedule, *, num_to_draft: int = 0) -> StepPlan:
        """Chooses blocks for a step. Afterwards its keys count as written: launch it before the next commit."""
        assert schedule.step == self._last_step + 1, "a schedule is committed at once or not at all"
        for seat in schedule.preempted_seats:
            self._let_go(seat)
        self._move_windows(schedule.running_seats, schedule.running_computed)

        # Hits are claimed before blocks are taken, lest making room evicts them.
        self._last_step = schedule.step
        for entrant in schedule.entrants:
            self._share_hit(entrant)
        entries = schedule.entries
        num_tokens = entries.num_computed + entries.num_scheduled
        if len(schedule.num_undecided):
            num_tokens = num_tokens + schedule.num_undecided  # wherever the step begins, it finds its blocks
        lacking = self._tables.lacking(entries.seats, num_tokens)
        copied = [group.copied for entrant in schedule.entrants if entrant.hit for group in entrant.hit.blocks]
        num_copies = sum(map(len, copied))
        blocks = self._take(num_copies + len(lacking.seats))
        page_copies = NO_PAGE_COPIES
        if num_copies:
            page_copies = np.empty((num_copies, 2), np.int32)
            page_copies[:, 0] = np.concatenate(copied)
            page_copies[:, 1] = blocks[:num_copies]
            self._place_copies(schedule.entrants, page_copies)
        admissions = tuple(self._admission(entrant) for entrant in schedule.entrants)
        new_blocks = self._append(lacking, blocks[num_copies:])
        self._plant_due(entries.seats, entries.num_computed + entries.num_scheduled - entries.num_drafts)
        return StepPlan(
            step=schedule.step,
            released_seats=schedule.released_seats,
            admissions=admissions,
            freed_blocks=self._pool.collect_freed(),
            page_copies=page_copies,
            new_blocks=new_blocks,
            seats=entries.seats.astype(np.int32),
            request_numbers=entries.request_numbers,
            num_computed=entries.num_computed.astype(np.int32),
            num_scheduled=entries.num_scheduled.astype(np.int32),
            num_drafts=entries.num_drafts.astype(np.int32),
            samples=entries.samples,
            num_logit_rows=entries.num_logit_rows.astype(np.int32),
            draft_token_ids=schedule.draft_token_ids,
            num_undecided=schedule.num_undecided.astype(np.int32),
            num_to_draft=num_to_draft,
            media=schedule.media,
        )

    def release(self, seat: int, *, num_computed: int, is_sound: bool = True) -> None:
        """Lets go of the blocks of a request that has ended; steps up to the last committed one may still touch them.

        The request's chain must hold all its known tokens. What was computed of them stays as a checkpoint, unless it
        is not sound: then everything kept along its way is given up too.
        """
        marked = self._marks.get(seat)
        if marked is not None and self._prefixes is not None:
            position = min(num_computed, len(marked.chain), marked.end)
            if is_sound:
                if self._window_is_held(seat, position):
                    self._plant(seat, marked.chain, position, marked.passage)
                self._prefixes.remember(marked.chain)
            else:
                self._prefixes.discard(marked.chain)
        self._let_go(seat)

    def give_back(self, seats: Seats, num_tokens: NDArray[np.int64]) -> None:
        """Returns the blocks behind the tokens of these seats, of which no more can hold: they were taken for
        drafts."""
        tables = self._tables
        entries = tables.beyond(seats, num_tokens)
        if len(entries.seats):
            self._pool.release(tables.read(entries), fence=self._last_step)
            tables.end[:, seats] = np.minimum(tables.end[:, seats], tables.end_needed(num_tokens))

    def retire(self, step: int) -> None:
        """Takes note that everything that `step` reads or writes has been read and written."""
        self._last_retired_step = max(self._last_retired_step, step)

    def reset_prefixes(self) -> None:
        """Drops all cached prefixes. Blocks in tables stay with their requests."""
        if self._prefixes is not None:
            self._prefixes.clear()

    def stats(self) -> CacheStats:
        return CacheStats(
            num_blocks=self.num_blocks - 1,
            num_blocks_in_tables=self._pool.num_in_tables,
            num_blocks_by_kind=tuple(
                (group.kind, self._tables.num_held(index)) for index, group in enumerate(self.layout.groups)
            ),
            num_blocks_cached=self._pool.num_cached,
            num_checkpoints=0 if self._prefixes is None else len(self._prefixes),
            num_prompt_tokens=self._num_prompt_tokens,
            num_prompt_tokens_hit=self._num_prompt_tokens_hit,
        )

    def picture(self, *, max_cells: int) -> ArenaPicture:
        return draw(self.layout, self._pool, self._tables, max_cells=max_cells)

    def check_integrity(self, seats: Seats, num_computed: NDArray[np.int64], num_drafts: NDArray[np.int64]) -> None:
        """The tables of the occupied `seats` account for every block that is out, and hold what they must and no more:
        the window before `num_computed`, the tokens up to there, and the drafts in flight."""
        self._pool.check_integrity()
        if self._prefixes is not None:
            self._prefixes.check_integrity()
        refs = np.zeros(self.num_blocks, np.int32)
        for seat in seats.tolist():
            np.add.at(refs, self._tables.held_in_all_groups(seat), 1)
        assert (refs == self._pool.table_refs).all(), "tables and the pool disagree on who holds what"
        for group, first, end in zip(self.layout.groups, self._tables.first, self._tables.end, strict=True):
            needed_first, needed_end = block_range(group, num_computed, 0)
            assert (first[seats] <= needed_first).all(), "a window has left behind what it still sees"
            assert (needed_end <= end[seats]).all(), "computed tokens have no block"
            assert (end[seats] <= block_range(group, num_computed, num_drafts)[1]).all(), "a block holds nothing"

    def _move_windows(self, seats: Seats, num_computed: NDArray[np.int64]) -> None:
        entries = self._tables.behind_windows(seats, num_computed)
        if len(entries.seats):
            self._pool.release(self._tables.read(entries), fence=self._last_step)
            # Where a seat has several entries here, the last assignment stays.
            self._tables.first[entries.groups, entries.seats] = entries.indices + 1

    def _share_hit(self, entrant: Entrant) -> None:
        """Put a hit's blocks into the entrant's tables and keep the ones to be copied from until this step is over."""
        if entrant.chain is not None and self._prefixes is not None:
            passage = NEW_GROUND if entrant.is_resumed else self._prefixes.enter(entrant.chain)
            num_computed = entrant.num_computed
            end = NEVER if self._keeps_answers else len(entrant.request.prompt_token_ids) - 1
            self._marks.set(entrant.seat, entrant.chain, num_computed=num_computed, passage=passage, end=end)
            if not entrant.is_resumed:
                self._num_prompt_tokens += len(entrant.chain)
                self._num_prompt_tokens_hit += num_computed
        if entrant.hit is None or self._prefixes is None:
            return
        self._prefixes.use(entrant.hit)
        for index, (first, shared, copied) in enumerate(entrant.hit.blocks):
            self._pool.share(shared)
            self._pool.share(copied)
            end = first + len(shared)
            self._tables.block_ids[index][entrant.seat, first:end] = shared
            self._tables.first[index, entrant.seat] = first
            self._tables.end[index, entrant.seat] = end + len(copied)

    def _place_copies(self, entrants: Sequence[Entrant], page_copies: NDArray[np.int32]) -> None:
        destinations = iter(page_copies[:, 1])
        for entrant in entrants:
            if entrant.hit is not None:
                for index, group in enumerate(entrant.hit.blocks):
                    if len(group.copied):
                        last = self._tables.end[index, entrant.seat] - 1
                        self._tables.block_ids[index][entrant.seat, last] = next(destinations)
        self._pool.release(page_copies[:, 0], fence=self._last_step)

    def _admission(self, entrant: Entrant) -> Admission:
        return Admission(
            seat=entrant.seat,
            request=entrant.request,
            output_token_ids=entrant.output_token_ids,
            num_computed_tokens=entrant.num_computed,
            tables=tuple(
                TableSlice(int(first[entrant.seat]), self._tables.held(index, entrant.seat).copy())
                for index, first in enumerate(self._tables.first)
            ),
        )

    def _take(self, count: int) -> Blocks:
        if self._prefixes is not None:
            self._prefixes.evict(count)
        return self._pool.take(count)

    def _append(self, lacking: TableEntries, blocks: Blocks) -> NewBlocks:
        if not len(blocks):
            return NO_NEW_BLOCKS
        self._tables.append(lacking, blocks)
        return NewBlocks(
            seats=lacking.seats.astype(np.int32),
            groups=lacking.groups.astype(np.int32),
            indices=lacking.indices.astype(np.int32),
            block_ids=blocks,
        )

    def _plant_due(self, seats: Seats, num_computed: NDArray[np.int64]) -> None:
        computed_by_seat = None
        for seat in self._marks.due(seats, num_computed):
            computed_by_seat = computed_by_seat or dict(zip(seats.tolist(), num_computed.tolist(), strict=True))
            marked = self._marks.get(seat)
            assert marked is not None
            for position in self._marks.pass_until(seat, computed_by_seat[seat]):
                self._plant(seat, marked.chain, position, marked.passage)

    def _window_is_held(self, seat: int, position: int) -> bool:
        """False if the window has moved past `position`, because steps were launched on tokens not yet known here."""
        return all(
            block_range(group, position, 0)[0] >= first[seat]
            for group, first in zip(self.layout.groups, self._tables.first, strict=True)
        )

    def _plant(self, seat: int, chain: PrefixChain, position: int, passage: Passage) -> None:
        tables = []
        for index, group in enumerate(self.layout.groups):
            first, end = block_range(group, position, 0)
            tables.append(TableSlice(first, self._tables.block_ids[index][seat, first:end].copy()))
        assert self._prefixes is not None
        self._prefixes.plant(chain, position, tuple(tables), passage)

    def _let_go(self, seat: int) -> None:
        """Lets go of blocks; the last committed step may be the last to touch them."""
        self._pool.release(self._tables.held_in_all_groups(seat), fence=self._last_step)
        self._tables.clear(seat)
        self._marks.clear(seat)
