"""A runner that stores token ids where a real one stores keys, and checks every read.

Its arena has the slots of every page for every group. A page belongs to the group that wrote it last, as bytes would.
Each scheduled query must find, in every slot it can see, the right token at the right position: a read of dead memory,
of somebody else's block or of a slot not yet written fails at once.

Tokens are "sampled" by a function of all tokens so far, so a request in company must end up with the tokens of a
request alone, whatever was drafted on the way.
"""

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from facet.kv_cache.schedule import Schedule
from facet.kv_layout import KVLayout
from facet.request import FinishReason, Request
from facet.scheduler.drafting import NO_DRAFTS, Drafter
from facet.scheduler.scheduler import Scheduler
from facet.step import SCRATCH_BLOCK, StepPlan, StepResult, TokenEvent

DEAD = -1
NO_GROUP = -1
SECONDS_PER_ROW = 1.0

Sampler = Callable[[Request, Sequence[int]], int | None]
Guess = Callable[[Sequence[int], int], list[int]]  # so many tokens that may follow


class FakeRunner:
    def __init__(
        self,
        layout: KVLayout,
        *,
        num_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        sample: Sampler,
        guess: Guess,
        computes_late: bool = False,
        num_encoder_rows: int = 0,
        max_num_encoded_rows: int = 0,
    ) -> None:
        self._layout = layout
        self._sample = sample
        self._guess = guess
        self._max_num_batched_tokens = max_num_batched_tokens
        # Work on several streams: blocks are poisoned when a plan is launched, though an earlier step has yet to run.
        self._computes_late = computes_late
        self._token_at = [np.full((num_blocks, g.tokens_per_block), DEAD) for g in layout.groups]
        self._position_at = [np.full((num_blocks, g.tokens_per_block), DEAD) for g in layout.groups]
        self._group_of = np.full(num_blocks, NO_GROUP)
        self._tables = [
            np.full((max_num_seqs, -(-max_model_len // g.tokens_per_block)), SCRATCH_BLOCK) for g in layout.groups
        ]
        self._requests: dict[int, Request] = {}
        self._tokens: dict[int, list[int]] = {}
        self._media: dict[int, dict[int, int]] = {}  # by seat and position: what is stored instead of the token
        self._encoder_rows: dict[str, int] = {}  # by content key
        self._num_encoder_rows, self._max_num_encoded_rows = num_encoder_rows, max_num_encoded_rows
        self.encoded: list[tuple[str, ...]] = []  # by every step that encodes something
        self._launched: deque[tuple[StepPlan, StepResult | None]] = deque()
        # By seat of the last step: drafts that were right, and how a drafter goes on.
        self._num_accepted: dict[int, int] = {}
        self._guesses: dict[int, list[int]] = {}
        self._last_step = 0
        self.num_tokens_computed = 0
        self.num_drafts_computed = 0
        self.num_drafts_accepted = 0
        self.num_steps_ahead = 0
        self.max_num_requests_in_a_step = 0

    def launch(self, plan: StepPlan) -> None:
        assert plan.step == self._last_step + 1
        self._last_step = plan.step
        self._poison(plan)
        self._launched.append((plan, None if self._computes_late else self._run(plan)))

    def collect(self) -> tuple[StepPlan, StepResult]:
        plan, result = self._launched.popleft()
        return plan, self._run(plan) if result is None else result

    @property
    def num_in_flight(self) -> int:
        return len(self._launched)

    @property
    def has_drafts_in_flight(self) -> bool:
        return any(plan.has_drafts for plan, _ in self._launched)

    @property
    def is_drafting(self) -> bool:
        """Whether a single step is in flight, and a drafter goes on behind it."""
        return len(self._launched) == 1 and self._launched[0][0].num_to_draft > 0

    def _poison(self, plan: StepPlan) -> None:
        assert SCRATCH_BLOCK not in plan.freed_blocks
        self._group_of[plan.freed_blocks] = NO_GROUP

    def _run(self, plan: StepPlan) -> StepResult:
        if plan.is_ahead:
            plan = self._decided(plan)
        self._set_up_seats(plan)
        for source, destination in plan.page_copies:
            self._copy_page(source, destination)
        blocks = plan.new_blocks
        for seat, group, index, block in zip(
            blocks.seats, blocks.groups, blocks.indices, blocks.block_ids, strict=True
        ):
            assert block != SCRATCH_BLOCK
            self._tables[group][seat, index] = block
        self._check_shape(plan)
        self._encode(plan)
        drafts = self._append_drafts(plan)
        entries = list(zip(plan.seats.tolist(), plan.num_computed.tolist(), plan.num_scheduled.tolist(), strict=True))
        for seat, computed, scheduled in entries:
            self._write(seat, computed, scheduled)
        for seat, computed, scheduled in entries:
            self._read(seat, computed, scheduled)
        self.num_tokens_computed += plan.num_tokens
        self.max_num_requests_in_a_step = max(self.max_num_requests_in_a_step, len(entries))
        return self._sample_all(plan, drafts)

    def _decided(self, plan: StepPlan) -> StepPlan:
        """A step that is ahead, as it would have been planned after the one before it."""
        self.num_steps_ahead += 1
        assert not plan.admissions, "who enters is not ahead"
        num_accepted = np.array([self._num_accepted[seat] for seat in plan.seats.tolist()], np.int32)
        assert (num_accepted <= plan.num_undecided).all(), "more drafts were right than the plan allows for"
        drafts: list[int] = []
        for seat, count in zip(plan.seats.tolist(), plan.num_drafts.tolist(), strict=True):
            assert count <= len(self._guesses[seat]), "a draft that nobody has guessed"
            drafts += self._guesses[seat][:count]
        return replace(
            plan,
            num_computed=plan.num_computed + num_accepted,
            draft_token_ids=np.array(drafts, np.int64),
            num_undecided=np.zeros(0, np.int32),
        )

    def _encode(self, plan: StepPlan) -> None:
        """Every row of media is there when it is computed, and there is room for all that is kept."""
        for key in plan.media.forgotten:
            del self._encoder_rows[key]
        new = {key: plan.media.used[key] for key in plan.media.encoded}
        assert not new.keys() & self._encoder_rows.keys(), "content is encoded once"
        assert len(new) <= 1 or sum(new.values()) <= self._max_num_encoded_rows
        self._encoder_rows |= new
        assert sum(self._encoder_rows.values()) <= self._num_encoder_rows or not self._encoder_rows
        for seat, computed, scheduled in zip(plan.seats, plan.num_computed, plan.num_scheduled, strict=True):
            for span in self._requests[seat].media if self._requests[seat].contents else ():
                if span.first < computed + scheduled and computed < span.end:
                    assert self._encoder_rows[span.content_key] == span.length
        if new:
            self.encoded.append(plan.media.encoded)

    def _set_up_seats(self, plan: StepPlan) -> None:
        for seat in plan.released_seats:
            del self._tokens[seat], self._requests[seat], self._media[seat]
            for table in self._tables:
                table[seat] = SCRATCH_BLOCK
        for admission in plan.admissions:
            assert admission.seat not in self._tokens, "two requests in one seat"
            assert admission.num_computed_tokens < len(admission.token_ids)
            self._tokens[admission.seat] = list(admission.token_ids)
            self._requests[admission.seat] = admission.request
            self._media[admission.seat] = media_contents(admission.request)
            for table, (first, block_ids) in zip(self._tables, admission.tables, strict=True):
                table[admission.seat, first : first + len(block_ids)] = block_ids

    def _append_drafts(self, plan: StepPlan) -> dict[int, list[int]]:
        """Until they are sampled, drafts are tokens like others."""
        unread = plan.draft_token_ids.tolist()
        drafts: dict[int, list[int]] = {}
        for seat, count in zip(plan.seats.tolist(), plan.num_drafts.tolist(), strict=True):
            drafts[seat], unread = unread[:count], unread[count:]
            self._tokens[seat] += drafts[seat]
        assert not unread, "a draft belongs to nobody"
        self.num_drafts_computed += len(plan.draft_token_ids)
        return drafts

    def _check_shape(self, plan: StepPlan) -> None:
        assert plan.num_tokens > 0
        self._check_chunks(plan)
        assert len(set(plan.seats.tolist())) == len(plan.seats)
        is_long = plan.num_scheduled > 1
        assert (np.sort(is_long) == is_long).all(), "entries of one token come first"
        for seat, computed, scheduled, drafted, samples, num_logits in zip(
            plan.seats.tolist(),
            plan.num_computed,
            plan.num_scheduled,
            plan.num_drafts,
            plan.samples,
            plan.num_logit_rows,
            strict=True,
        ):
            assert samples == (computed + scheduled - drafted == len(self._tokens[seat]))
            assert samples or not drafted
            assert num_logits in {samples + drafted, scheduled}
            if self._requests[seat].sampling.prompt_logprobs is None:
                assert num_logits == samples + drafted

    def _check_chunks(self, plan: StepPlan) -> None:
        """Single tokens apart they keep to the budget, and no span that attends both ways is cut."""
        num_tokens = plan.num_scheduled - plan.num_drafts
        beyond_one = plan.num_drafts + num_tokens * (num_tokens > 1)
        assert beyond_one.sum() <= self._max_num_batched_tokens, "more than the budget"
        for seat, computed, scheduled in zip(
            plan.seats.tolist(), plan.num_computed.tolist(), plan.num_scheduled.tolist(), strict=True
        ):
            for span in self._requests[seat].media:
                for end in (computed, computed + scheduled):
                    is_cut = span.attends_both_ways and span.first < end < span.end
                    assert not is_cut, "a span that attends both ways was cut"

    def _contents(self, seat: int, start: int, stop: int) -> list[int]:
        contents = self._tokens[seat][start:stop]
        for position, content in self._media[seat].items():
            if start <= position < start + len(contents):
                contents[position - start] = content
        return contents

    def _copy_page(self, source: int, destination: int) -> None:
        assert self._group_of[source] != NO_GROUP, "copy of a dead page"
        self._group_of[destination] = self._group_of[source]
        for arena in (*self._token_at, *self._position_at):
            arena[destination] = arena[source]

    def _places(self, seat: int, group: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        positions = np.arange(start, stop)
        tokens_per_block = self._layout.groups[group].tokens_per_block
        blocks = self._tables[group][seat, positions // tokens_per_block]
        assert (blocks != SCRATCH_BLOCK).all(), "a table has a hole"
        return positions, blocks, positions % tokens_per_block

    def _write(self, seat: int, computed: int, scheduled: int) -> None:
        token_ids = self._contents(seat, computed, computed + scheduled)
        assert len(token_ids) == scheduled, "a token was scheduled that nobody has sampled"
        for group in range(len(self._layout.groups)):
            positions, blocks, slots = self._places(seat, group, computed, computed + scheduled)
            for block in np.unique(blocks[self._group_of[blocks] != group]):
                self._group_of[block] = group
                self._token_at[group][block] = self._position_at[group][block] = DEAD
            self._token_at[group][blocks, slots] = token_ids
            self._position_at[group][blocks, slots] = positions

    def _read(self, seat: int, computed: int, scheduled: int) -> None:
        for index, group in enumerate(self._layout.groups):
            start = 0 if group.window is None else max(0, computed - group.window + 1)
            positions, blocks, slots = self._places(seat, index, start, computed + scheduled)
            assert (self._group_of[blocks] == index).all(), "a read of dead or foreign memory"
            assert (self._position_at[index][blocks, slots] == positions).all(), "a read of another position"
            expected = self._contents(seat, start, computed + scheduled)
            assert (self._token_at[index][blocks, slots] == expected).all(), "a read of another sequence"

    def _sample_all(self, plan: StepPlan, drafts: dict[int, list[int]]) -> StepResult:
        runs: list[tuple[int, ...]] = []
        faults: list[str | None] = []
        self._num_accepted, self._guesses = {}, {}
        for seat in plan.seats[plan.samples].tolist():
            del self._tokens[seat][len(self._tokens[seat]) - len(drafts[seat]) :]
            num_tokens = len(self._tokens[seat])
            run, fault = self._sample_run(seat, drafts[seat])
            self._num_accepted[seat] = len(self._tokens[seat]) - num_tokens - 1
            self._guesses[seat] = self._guess(self._tokens[seat], plan.num_to_draft) if plan.num_to_draft else []
            runs.append(run)
            faults.append(fault)
            self.num_drafts_accepted += max(0, len(run) - 1)
        prompt_logprobs = []
        for entry, (seat, computed, scheduled, num_logits) in enumerate(
            zip(plan.seats.tolist(), plan.num_computed, plan.num_scheduled, plan.num_logit_rows, strict=True)
        ):
            request = self._requests[seat]
            stop = min(computed + scheduled, len(request.prompt_token_ids) - 1)
            if request.sampling.prompt_logprobs is not None and num_logits == scheduled and computed < stop:
                prompt_logprobs.append((entry, range(computed, stop)))
        return StepResult(
            token_ids=tuple(runs),
            faults=tuple(faults),
            logprobs=tuple([f"logprobs of {token_id}" for token_id in run] for run in runs),
            prompt_logprobs=tuple(prompt_logprobs),
        )

    def _sample_run(self, seat: int, drafts: Sequence[int]) -> tuple[tuple[int, ...], str | None]:
        """One token, and one more for every draft that agrees with the token sampled in its place."""
        tokens = self._tokens[seat]
        run: list[int] = []
        for draft in (*drafts, None):
            token_id = self._sample(self._requests[seat], tokens)
            if token_id is None:
                tokens.append(0)  # a step launched on top of it needs some token
                return tuple(run), "broken logits"
            tokens.append(token_id)
            run.append(token_id)
            if token_id != draft:
                break
        return tuple(run), None


def media_contents(request: Request) -> dict[int, int]:
    """What keys at positions that are media come from: a number for every content and offset in it, no token's id."""
    return {
        span.first + offset: 1000 + zlib.crc32(f"{span.content_key} {span.attends_both_ways} {offset}".encode())
        for span in request.media
        for offset in range(span.length)
    }


class FakeEngine:
    """The loop in both orders, with an integrity check after every verb."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: FakeRunner,
        *,
        max_in_flight: int,
        checks_integrity: bool,
        drafter: Drafter | None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self._checks_integrity = checks_integrity
        self._max_in_flight = max_in_flight  # steps that are not yet settled when the next one is planned
        self._drafter = drafter
        self.output_token_ids: dict[str, list[int]] = {}
        self.finish_reasons: dict[str, FinishReason] = {}
        self.num_cached_tokens: dict[str, int] = {}
        self.prompt_logprobs: dict[str, list[int]] = {}

    def submit(self, request: Request) -> None:
        self.scheduler.submit(request)
        self.output_token_ids[request.request_id] = []
        self.prompt_logprobs[request.request_id] = []

    def cancel(self, request_id: str) -> None:
        event = self.scheduler.cancel(request_id)
        assert (event is None) == (request_id in self.finish_reasons)
        if event is not None:
            self._hear(event)
        self._check()

    def step(self, *, cancel_in_flight: str | None = None) -> None:
        """One turn of the loop; a request may be cancelled between a launch and the settling before it."""
        schedule = self._plan()
        plans = schedule is not None and not schedule.is_empty
        if schedule is not None and plans:
            num_requests = len(schedule.entries.seats)
            num_to_draft = 0 if self._drafter is None else self._drafter.num_ahead(num_requests)
            plan = self.scheduler.commit(schedule, num_to_draft=num_to_draft)
            self._check()
            self.runner.launch(plan)
        else:
            assert self.runner.num_in_flight or not self.scheduler.has_requests, "nothing runs and nothing will"
        if cancel_in_flight is not None:
            self.cancel(cancel_in_flight)
        while self.runner.num_in_flight > (self._max_in_flight if plans else 0):
            plan, result = self.runner.collect()
            self.scheduler.learn(plan, SECONDS_PER_ROW * plan.num_tokens)
            for event in self.scheduler.settle(plan, result):
                self._hear(event)
            self._check()

    def _plan(self) -> Schedule | None:
        if self._drafter is None:
            return self.scheduler.plan(NO_DRAFTS)
        running = self.scheduler.draftable()
        if self.runner.is_drafting:
            schedule = self.scheduler.plan_ahead(self._drafter.num_unseen(running))
            if schedule is not None:
                return schedule
        drafts = self._drafter.propose(running)
        waits = self.runner.has_drafts_in_flight or self._drafter.is_worth_waiting(running)
        return None if waits and self.runner.num_in_flight else self.scheduler.plan(drafts)

    def run(self, max_num_steps: int = 100_000) -> int:
        """Until nobody is left; returns the number of steps."""
        for step in range(max_num_steps):
            if not self.scheduler.has_requests and not self.runner.num_in_flight:
                return step
            self.step()
        raise AssertionError(f"requests are left after {max_num_steps} steps")

    def _check(self) -> None:
        if self._checks_integrity:
            self.scheduler.check_integrity()

    def _hear(self, event: TokenEvent) -> None:
        assert event.request_id not in self.finish_reasons, "an event after the end"
        self.output_token_ids[event.request_id] += event.token_ids
        if event.token_ids:
            assert event.logprobs == [f"logprobs of {token_id}" for token_id in event.token_ids]
        assert (event.error is not None) == (event.finish_reason == "error")
        if event.prompt_logprobs is not None:
            self.prompt_logprobs[event.request_id].extend(event.prompt_logprobs)
        if event.finish_reason is not None:
            self.finish_reasons[event.request_id] = event.finish_reason
        self.num_cached_tokens[event.request_id] = event.num_cached_tokens
