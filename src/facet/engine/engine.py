"""The engine loop: plan, commit, launch, settle.

In the plain order a step is settled before the next is planned. In the overlapped order the next step is planned and
launched first, and the one before it is settled while the device is busy. The operations are the same; only the moment
when a launched step is waited for differs. A step with drafts is waited for before the next is planned, unless that one
can be launched ahead of its tokens (`scheduler/plan_ahead.py`).
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from facet.adapter import AdapterInfo, AdapterSource
from facet.arena_picture import ArenaPicture
from facet.config import EngineConfig
from facet.engine.adapters import Adapters
from facet.engine.compiling import CompilingRequests
from facet.engine.loading import make_runner
from facet.engine.media_check import check_media
from facet.engine.ranks import LeadingRunner
from facet.engine.settings import EngineSettings
from facet.errors import ConfigError, RequestError, UserError
from facet.faults import Fault
from facet.kv_cache.manager import KVCacheManager
from facet.kv_cache.schedule import Schedule
from facet.media_span import check_attention
from facet.progress import Progress, Silent
from facet.request import Request
from facet.runner.draft_ahead import DraftsInFlight
from facet.runner.runner import Runner, WorkCounters
from facet.runner.sleeping import Sleeper
from facet.runner.step_sampling import SampledStep
from facet.sampling import GrammarCompiler, Grammars
from facet.sampling_params import check_against_vocabulary
from facet.scheduler.drafting import Drafter
from facet.scheduler.limits import Limits, check_request
from facet.scheduler.scheduler import Scheduler, SchedulerStats
from facet.step import StepPlan, StepResult, TokenEvent

# While nothing but a compiling grammar is there: how long a step may last before messages are looked at again.
SECONDS_TO_WAIT_FOR_A_GRAMMAR = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine at one moment."""

    scheduler: SchedulerStats
    work: WorkCounters
    num_corrupted_requests: int  # ended because their logits were not finite, ever


class _StartedStep(NamedTuple):
    """A step that has been launched and sampled, and is to be settled."""

    plan: StepPlan
    sampled: SampledStep
    start: float  # when the device could begin it at the earliest, on the monotonic clock


class _SettledStep(NamedTuple):
    """A step that a drafter has yet to learn from."""

    plan: StepPlan
    result: StepResult
    seconds: float


class _Guesses(NamedTuple):
    """Guesses behind the tokens of a settled step. The host was at work while they were made."""

    plan: StepPlan
    drafts: DraftsInFlight


class Engine:
    """Requests in, token events out, one step at a time."""

    def __init__(
        self,
        runner: Runner | LeadingRunner,
        settings: EngineSettings,
        tokenizer_folder: Path | None = None,
        drafter: Drafter | None = None,
        sleeper: Sleeper | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        """`tokenizer_folder` is for grammars, which are matched against tokens; None: requests bring none."""
        self.settings = settings
        self.runner = runner
        self._vocab_size = runner.model.spec.vocab_size
        self._scheduler = Scheduler(
            KVCacheManager(
                settings.layout,
                num_blocks=settings.num_blocks,
                max_num_seqs=settings.max_num_seqs,
                max_model_len=settings.max_model_len,
                enable_prefix_caching=settings.enable_prefix_caching,
                keeps_answers=settings.keeps_answers,
            ),
            Limits(
                max_num_batched_tokens=settings.max_num_batched_tokens,
                max_num_seqs=settings.max_num_seqs,
                max_model_len=settings.max_model_len,
                max_num_drafts=0 if drafter is None else drafter.max_num_drafts,
                max_num_rows_ahead=max(settings.graph_sizes, default=0) if settings.overlapped else 0,
                max_num_encoded_rows=settings.max_num_encoded_rows,
                num_encoder_rows=0 if settings.encoder is None else settings.encoder.num_rows,
                heeds_priority=settings.heeds_priority,
                max_step_seconds=settings.max_step_seconds,
            ),
        )
        self._drafter = drafter
        self._sleeper = sleeper
        self._adapters = adapters
        self._in_flight: _StartedStep | None = None
        self._unheard: _Guesses | None = None
        self._unlearned: _SettledStep | None = None
        self._last_settled = 0.0  # when, on the monotonic clock
        self._num_corrupted_requests = 0
        self._grammars = Grammars(self._vocab_size)
        eos_token_ids = runner.model.spec.eos_token_ids
        self._compiling = CompilingRequests(
            GrammarCompiler(tokenizer_folder, vocab_size=self._vocab_size, eos_token_ids=eos_token_ids)
        )
        self._refusals: list[tuple[str, UserError]] = []

    @property
    def has_work(self) -> bool:
        return self._has_requests or len(self._compiling) > 0 or len(self._refusals) > 0

    @property
    def _has_requests(self) -> bool:
        return self._scheduler.has_requests or self._in_flight is not None

    def submit(self, request: Request) -> None:
        """Queues a request, or raises at once without affecting others."""
        if self.is_asleep:
            raise RequestError("The model is asleep. Wake it up, and send the request again.")
        ends = (min(request.prompt_token_ids, default=0), max(request.prompt_token_ids, default=0))
        outside = next((token for token in ends if not 0 <= token < self._vocab_size), None)
        if outside is not None:
            raise RequestError(
                f"The prompt holds token id {outside}, but this model's ids run from 0 to {self._vocab_size - 1}. "
                "Encode the text with this model's tokenizer.",
                field="prompt_token_ids",
            )
        check_media(request.contents, self.runner.media.towers)
        check_attention(request.media, some_layers_see_ahead=len(self.runner.model.spec.bidirectional_image_layers) > 0)
        check_against_vocabulary(request.sampling, vocab_size=self._vocab_size, eos_token_ids=request.eos_token_ids)
        thought = request.thought
        if request.sampling.thinking_token_budget is not None and (
            thought is None or max(thought.open_id, thought.close_id) >= self._vocab_size
        ):
            raise RequestError(
                "thinking_token_budget is set, but this model cannot write the tokens that mark a thought. Leave it "
                "out.",
                field="thinking_token_budget",
            )
        if request.adapter is not None:
            request = replace(request, placed_adapter=self._require_adapters(request.adapter).place_of(request.adapter))
        # A seed drawn now lets a preempted request go on with its own random numbers.
        request = replace(request, sampling=request.sampling.seeded())
        if request.request_id in self._compiling:
            raise RequestError(
                f"A request with id {request.request_id!r} is still waiting. Wait for it, cancel it, or use another "
                "id.",
                field="request_id",
            )
        if request.grammar is None:
            self._scheduler.submit(request)
            return
        cache = self._scheduler.kv_cache
        check_request(request, self._scheduler.limits, cache.layout, cache.num_blocks)
        # Text that is free until a trigger comes is not waited for; see `Grammars`.
        must_wait = request.grammar.trigger_token_id is None
        self._compiling.add(replace(request, needs_sampled_token_on_host=must_wait))

    def take_refusals(self) -> list[tuple[str, UserError]]:
        """Requests that were refused after `submit` accepted them, by id; each is returned once."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def cancel(self, request_id: str) -> TokenEvent | None:
        """End a request now, whatever it is doing. None: it had already ended."""
        self._grammars.remove([request_id])
        if self._compiling.cancel(request_id):
            return TokenEvent(request_id, (), "abort", 0)
        return self._scheduler.cancel(request_id)

    def step(self) -> list[TokenEvent]:
        """One turn of the loop. An empty list is normal: the first overlapped step has nothing to settle yet."""
        self._queue_compiled()
        events = self._launch_and_settle()
        if self._unlearned is not None and self._drafter is not None:
            # Not before: the device has its next step by now.
            self._drafter.learn(*self._unlearned)
            self._unlearned = None
        return events

    def _launch_and_settle(self) -> list[TokenEvent]:
        in_flight = self._in_flight
        if in_flight is not None and self._scheduler.queues.all_wait_for_host:
            # Ahead of their tokens nobody could go on but those that are not in flight: two halves would take turns.
            self._in_flight = None
            events = self._settle(in_flight)
            self._in_flight = self._start(self._last_settled)
            return events
        started = self._start(time.monotonic())
        if not self.settings.overlapped:
            return [] if started is None else self._settle(started)
        before, self._in_flight = self._in_flight, started
        events = [] if before is None else self._settle(before)
        if started is None and before is not None:
            # Everyone waited for these tokens. The device gets its next step before the clients get theirs.
            self._in_flight = self._start(self._last_settled)
        return events

    def _start(self, start: float) -> _StartedStep | None:
        """Plans, launches and samples a step, which the device could begin at `start`. None: no request can go on."""
        if self._unheard is not None and self._drafter is not None:
            self._drafter.hear(self._unheard.plan, self._unheard.drafts.wait())
            self._unheard = None
        schedule = self._plan()
        if schedule is None or schedule.is_empty:
            return None
        num_to_draft = 0 if self._drafter is None else self._drafter.num_ahead(len(schedule.entries.seats))
        plan = self._scheduler.commit(schedule, num_to_draft=num_to_draft)
        launched = self.runner.launch(plan)
        masks = self._grammars.masks(plan)  # not before: the device would wait for them
        self._scheduler.set_waits_for_host(self._grammars.take_waits())
        return _StartedStep(plan, self.runner.sample(launched, masks), start)

    def _plan(self) -> Schedule | None:
        """What the next step does. None: the step in flight is settled first, because drafts follow its tokens and are
        to be seen.

        Nobody goes on meanwhile. Requests that did would take turns with the others from then on, in steps of half as
        many rows that take as long.
        """
        drafter, in_flight = self._drafter, self._in_flight
        if in_flight is not None and drafter is not None and in_flight.plan.num_to_draft > 0:
            num_unseen = drafter.num_unseen(self._scheduler.draftable())
            schedule = self._scheduler.plan_ahead(num_unseen) if num_unseen else None
            if schedule is not None:
                return schedule
        if in_flight is not None and in_flight.plan.has_drafts:
            return None
        if drafter is None or not drafter.could_gain(self._scheduler.queues.num_running):
            return self._scheduler.plan()
        running = self._scheduler.draftable()
        if in_flight is not None and drafter.is_worth_waiting(running):
            return None
        return self._scheduler.plan(drafter.propose(running))

    def _settle(self, step: _StartedStep) -> list[TokenEvent]:
        plan, result = step.plan, step.sampled.wait()
        now = time.monotonic()
        seconds = now - max(step.start, self._last_settled)  # since the device could begin it
        self._last_settled = now
        self._scheduler.learn(plan, seconds)
        if self._drafter is not None:
            self._unlearned = _SettledStep(plan, self._scheduler.queues.heard(plan, result), seconds)
            guesses = step.sampled.drafts
            # A step that has been launched meanwhile verifies them, or has left them behind.
            self._unheard = None if guesses is None or self._in_flight is not None else _Guesses(plan, guesses)
        self._grammars.settle(plan, result)
        self._scheduler.set_waits_for_host(self._grammars.take_waits())
        events = self._scheduler.settle(plan, result)
        self._grammars.remove(event.request_id for event in events if event.finish_reason is not None)
        self._num_corrupted_requests += sum(event.error == Fault.NON_FINITE_LOGITS.value for event in events)
        return events

    def _queue_compiled(self) -> None:
        """Queues requests whose grammar has become ready, or refuses them."""
        if not len(self._compiling):
            return
        for request, grammar in self._compiling.take_ready(0 if self._has_requests else SECONDS_TO_WAIT_FOR_A_GRAMMAR):
            try:
                if isinstance(grammar, RequestError):
                    raise grammar
                self._scheduler.submit(request)
                self._grammars.add(request, grammar)
            except UserError as error:
                self._refusals.append((request.request_id, error))

    def stats(self) -> EngineStats:
        return EngineStats(
            scheduler=_with_more_waiting(self._scheduler.stats(), len(self._compiling)),
            work=self.runner.counters,
            num_corrupted_requests=self._num_corrupted_requests,
        )

    def picture(self, *, max_cells: int) -> ArenaPicture:
        """What the pages of the cache hold. Slower than `stats`; only for the page."""
        return self._scheduler.kv_cache.picture(max_cells=max_cells)

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes; blocks that running requests use are theirs and stay."""
        self._scheduler.reset_prefix_cache()

    @property
    def is_asleep(self) -> bool:
        return self._sleeper is not None and self._sleeper.level > 0

    def sleep(self, level: int) -> None:
        """Give the memory of weights and cache back. Requests have to end first; prefixes are forgotten.

        A model that sleeps at level 1 can be told to sleep at level 2; to sleep less deeply it has to wake up first.
        """
        if self._sleeper is None:
            raise ConfigError("This engine does not sleep. Start it with --enable-sleep-mode.")
        if level not in (1, 2):
            raise ConfigError(f"There is no level {level} of sleep. Give 1 (weights wait in the host's memory) or 2.")
        while self._in_flight is not None and not self._scheduler.has_requests:
            self.step()  # of requests that have ended meanwhile
        if self.has_work:
            raise ConfigError("Requests are running. Wait for them, or cancel them, before the model falls asleep.")
        if self._sleeper.level < level:
            self._scheduler.reset_prefix_cache()
            self._sleeper.sleep(level)

    def wake_up(self) -> None:
        """Raises `UserError` if memory or files are not there any more, and then sleeps on."""
        if self._sleeper is not None and self.is_asleep:
            level = self._sleeper.level
            self._sleeper.wake_up()
            if level == 2 and self._adapters is not None:
                self._adapters.load_again(self.runner.model.spec)

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        """Those that are loaded."""
        return () if self._adapters is None else self._adapters.infos

    @property
    def num_adapter_places(self) -> int:
        """How many there is room for."""
        return 0 if self._adapters is None else self._adapters.num_places

    def load_adapter(self, source: AdapterSource) -> None:
        """Loads an adapter under a name that is free, or raises `UserError`."""
        if self.is_asleep:
            raise ConfigError("The model is asleep. Wake it up before an adapter is loaded.")
        waiting = (*self._scheduler.queues.requests, *self._compiling.requests)
        used = {request.placed_adapter.number for request in waiting if request.placed_adapter is not None}
        self._require_adapters(source.name).load(source, self.runner.model.spec, used)

    def unload_adapter(self, name: str) -> None:
        """Refuses new requests with this adapter. Those that have it are finished."""
        self._require_adapters(name).unload(name)

    def _require_adapters(self, name: str) -> Adapters:
        if self._adapters is None:
            raise RequestError(
                f"There is no room for the adapter {name[:300]!r}: this engine was started without --enable-lora or "
                "--lora-modules.",
                field="model",
            )
        return self._adapters

    def load_grammars(self, *, in_background: bool = True) -> None:
        """Load what grammars need; otherwise the first request with one waits for it."""
        self._compiling.load(in_background=in_background)

    def check_integrity(self) -> None:
        """Checks that scheduler and cache agree; for tests."""
        self._scheduler.check_integrity()


def _with_more_waiting(stats: SchedulerStats, num_more: int) -> SchedulerStats:
    return replace(stats, num_waiting=stats.num_waiting + num_more)


def make_engine(config: EngineConfig, progress: Progress | None = None) -> tuple[Engine, str]:
    """An engine on one device. Also returns the folder that the model came from."""
    ready = make_runner(config, progress or Silent())
    engine = Engine(ready.runner, ready.settings, ready.folder, ready.drafter, ready.sleeper, ready.adapters)
    return engine, str(ready.folder)
