"""The loop: plan, commit, launch, settle.

In the plain order a step is settled before the next is planned. In the overlapped order the next step is planned and
launched first, and the one before it settled while the device is busy. The verbs are the same; only when a launched
step is waited for differs.
"""

from dataclasses import dataclass, replace

from facet.config import EngineConfig
from facet.engine.settings import EngineSettings, resolve
from facet.errors import RequestError
from facet.kv_cache.manager import KVCacheManager
from facet.layers.kv_arena import KVArena
from facet.model.loader import load_model
from facet.progress import Progress
from facet.request import Request
from facet.runner.runner import LaunchedStep, Runner, WorkCounters
from facet.sampling_params import check_against_vocabulary
from facet.scheduler.limits import Limits
from facet.scheduler.scheduler import Scheduler, SchedulerStats
from facet.step import TokenEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine at one moment."""

    scheduler: SchedulerStats
    work: WorkCounters
    num_corrupted_requests: int  # ended because their logits were not finite, ever


class Engine:
    """Requests in, token events out, one step at a time."""

    def __init__(self, runner: Runner, settings: EngineSettings) -> None:
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
            ),
            Limits(
                max_num_batched_tokens=settings.max_num_batched_tokens,
                max_num_seqs=settings.max_num_seqs,
                max_model_len=settings.max_model_len,
            ),
        )
        self._in_flight: LaunchedStep | None = None
        self._num_corrupted_requests = 0

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_requests or self._in_flight is not None

    def submit(self, request: Request) -> None:
        """Put a request in line, or raise at once: nothing else in the batch notices."""
        outside = next((token for token in request.prompt_token_ids if not 0 <= token < self._vocab_size), None)
        if outside is not None:
            raise RequestError(
                f"The prompt holds token id {outside}, but this model's ids run from 0 to {self._vocab_size - 1}. "
                "Encode the text with this model's tokenizer.",
                field="prompt_token_ids",
            )
        check_against_vocabulary(request.sampling, vocab_size=self._vocab_size, eos_token_ids=request.eos_token_ids)
        # A seed drawn now lets a preempted request go on with its own random numbers.
        self._scheduler.submit(replace(request, sampling=request.sampling.seeded()))

    def cancel(self, request_id: str) -> TokenEvent | None:
        """End a request now, whatever it is doing. None: it had already ended."""
        return self._scheduler.cancel(request_id)

    def step(self) -> list[TokenEvent]:
        """One turn of the loop. An empty list is normal: the first overlapped step has nothing to settle yet."""
        launched = None
        schedule = self._scheduler.plan()
        if not schedule.is_empty:
            launched = self.runner.launch(self._scheduler.commit(schedule))
        if self.settings.overlapped:
            launched, self._in_flight = self._in_flight, launched
        return [] if launched is None else self._settle(launched)

    def _settle(self, launched: LaunchedStep) -> list[TokenEvent]:
        events = self._scheduler.settle(launched.plan, launched.wait())
        self._num_corrupted_requests += sum(event.finish_reason == "error" for event in events)
        return events

    def stats(self) -> EngineStats:
        return EngineStats(
            scheduler=self._scheduler.stats(),
            work=self.runner.counters,
            num_corrupted_requests=self._num_corrupted_requests,
        )

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes; blocks that running requests use are theirs and stay."""
        self._scheduler.reset_prefix_cache()

    def check_integrity(self) -> None:
        """For tests: the books of scheduler and cache agree."""
        self._scheduler.check_integrity()


def make_engine(config: EngineConfig, progress: Progress | None = None) -> tuple[Engine, str]:
    """Load the model, size the cache, and be ready. Also the folder that the model came from."""
    loaded = load_model(config, progress)
    settings = resolve(config, loaded.model)
    runner = Runner(
        loaded.model,
        KVArena(settings.layout, settings.num_blocks, loaded.model.placement.device),
        max_num_seqs=settings.max_num_seqs,
        max_model_len=settings.max_model_len,
        fast_prefill=settings.fast_prefill,
        poison_freed_blocks=settings.poison_freed_blocks,
    )
    return Engine(runner, settings), str(loaded.folder)
