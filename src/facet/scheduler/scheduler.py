"""Combines queues and cache behind the operations of the engine loop.

    plain         plan, commit, launch, settle          overlapped     plan, commit, launch, settle the step before

A loop calls `commit` right after `plan`, launches what it returns, and settles steps in the order it launched them. An
empty schedule is not committed. `submit` and `cancel` may be called between any two of them except `plan` and `commit`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from facet.draft_counts import DraftCounts
from facet.kv_cache.manager import CacheStats, KVCacheManager
from facet.kv_cache.prefix_chain import PrefixChain
from facet.kv_cache.schedule import Schedule
from facet.request import Request
from facet.scheduler.drafting import NO_DRAFTS, Draftable, DraftCounter, Drafts
from facet.scheduler.encoding import EncoderBooks
from facet.scheduler.limits import Limits, check_request, max_num_tokens
from facet.scheduler.plan import plan_step
from facet.scheduler.plan_ahead import plan_ahead
from facet.scheduler.queues import Ended, Queues
from facet.scheduler.request_state import RequestState
from facet.scheduler.step_cost import NO_COST, CostLearner
from facet.step import StepPlan, StepResult, TokenEvent

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    num_running: int
    num_waiting: int
    num_preemptions: int  # ever
    num_output_tokens: int  # that requests got, ever
    cache: CacheStats
    drafts: DraftCounts
    num_short_steps: int = 0  # whose prompts got fewer rows so that they end in time, ever
    num_long_steps: int = 0  # that took longer than they should all the same, ever


class Scheduler:
    def __init__(self, kv_cache: KVCacheManager, limits: Limits) -> None:
        self.kv_cache = kv_cache
        self.limits = limits
        self.queues = Queues(limits.max_num_seqs)
        self._encoder = EncoderBooks(limits.num_encoder_rows)
        self._num_submitted = 0
        self._draft_counter = DraftCounter(limits.max_num_drafts)
        self._cost_learner = CostLearner()
        self._num_short_steps = self._num_long_steps = 0

    @property
    def has_requests(self) -> bool:
        return self.queues.num_running + self.queues.num_waiting > 0

    def submit(self, request: Request) -> None:
        """Queues a request, or raises `RequestError` or `CapacityError` if it could never run."""
        check_request(request, self.limits, self.kv_cache.layout, self.kv_cache.num_blocks)
        self._num_submitted += 1
        chain = None
        if self.kv_cache.caches_prefixes:
            chain = PrefixChain(request.prompt_token_ids, salt=_salt_of(request), media=request.media)
        self.queues.submit(
            RequestState(
                number=self._num_submitted,
                request=request,
                max_num_tokens=max_num_tokens(request, self.limits),
                chain=chain,
                priority=request.priority if self.limits.heeds_priority else 0,
            )
        )

    def cancel(self, request_id: str) -> TokenEvent | None:
        """End a request now. None: there is no such request any more."""
        ended = self.queues.cancel(request_id)
        if ended is None:
            return None
        self._release(ended)
        return TokenEvent(request_id, (), "abort", ended.state.num_cached_tokens)

    def draftable(self) -> list[Draftable]:
        """The running requests, and how many drafts of each a plan could take."""
        return self.queues.draftable(self.limits.max_num_drafts)

    def plan(self, drafts: Drafts = NO_DRAFTS) -> Schedule:
        """What the next step does. Not to be asked while a step with drafts is in flight: how its requests go on is not
        known."""
        assert not drafts or self.limits.max_num_drafts > 0, "drafts were not allowed for"
        cost = NO_COST if self.limits.max_step_seconds is None else self._cost_learner.cost()
        return plan_step(self.queues.view(), self.kv_cache.view(), self._encoder, self.limits, drafts, cost)

    def plan_ahead(self, num_drafts_wanted: Mapping[int, int]) -> Schedule | None:
        """The next step, while a single step is in flight with drafts or a drafter behind it. None: it has to wait.

        `num_drafts_wanted`: by request number, how many of the drafts that are being made the step should verify.
        """
        return plan_ahead(self.queues.view(), self.kv_cache.view(), self.limits, num_drafts_wanted)

    def commit(self, schedule: Schedule, *, num_to_draft: int = 0) -> StepPlan:
        """`num_to_draft`: see `StepPlan`."""
        plan = self.kv_cache.commit(schedule, num_to_draft=num_to_draft)
        self.queues.advance(schedule)
        self._encoder.commit(schedule.media)
        self._num_short_steps += schedule.was_short_of_time
        return plan

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """Learns from a step that has been settled, so long after the device could begin it. Of use where a step's time
        is limited."""
        limit = self.limits.max_step_seconds
        if limit is not None:
            self._cost_learner.learn(plan, seconds)
            is_beside_others = bool((plan.num_scheduled - plan.num_drafts == 1).any())
            self._num_long_steps += is_beside_others and seconds > limit

    def settle(self, plan: StepPlan, result: StepResult) -> list[TokenEvent]:
        if plan.has_drafts:
            self._draft_counter.count(plan, self.queues.heard(plan, result))
        events, ended = self.queues.settle(plan, result)
        for end in ended:
            self._release(end)
        if plan.has_drafts:
            self.kv_cache.give_back(*self.queues.most_in_place(plan))
        self.kv_cache.retire(plan.step)
        return events

    def set_waits_for_host(self, waits: Mapping[int, bool]) -> None:
        """Running requests whose `needs_sampled_token_on_host` changes with what they say, by request number."""
        self.queues.set_waits_for_host(waits)

    def reset_prefix_cache(self) -> None:
        self.kv_cache.reset_prefixes()

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=self.queues.num_running,
            num_waiting=self.queues.num_waiting,
            num_preemptions=self.queues.num_preemptions,
            num_output_tokens=self.queues.num_output_tokens,
            cache=self.kv_cache.stats(),
            drafts=self._draft_counter.counts(),
            num_short_steps=self._num_short_steps,
            num_long_steps=self._num_long_steps,
        )

    def check_integrity(self) -> None:
        self.queues.check_integrity()
        self._encoder.check_integrity()
        view = self.queues.view()
        seats, running = view.order, view.seats
        self.kv_cache.check_integrity(seats, running.num_computed[seats], running.num_undecided[seats])

    def _release(self, ended: Ended) -> None:
        if ended.seat is not None:
            is_sound = ended.finish_reason != "error"
            self.kv_cache.release(ended.seat, num_computed=ended.num_computed, is_sound=is_sound)
        guard = ended.state.loop_guard
        if ended.finish_reason == "repetition" and guard is not None:
            logger.warning(
                "%s: ended after %d tokens, the last of which repeat a cycle of %d (--no-loop-guard lets it go on)",
                ended.state.request.request_id, len(ended.state.output_token_ids), guard.cycle,
            )  # fmt: skip


def _salt_of(request: Request) -> str | None:
    """What cached prefixes of a request are apart by: the adapter that its keys were made with, and its own salt, which
    cannot be written so that it reads as an adapter."""
    salt = None if request.cache_salt is None else f"salt {request.cache_salt}"
    return salt if request.placed_adapter is None else f"adapter {request.placed_adapter.key} {salt}"
