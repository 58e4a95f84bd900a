"""Passes messages to an engine and makes messages of its results, in this process or another."""

import time
from collections.abc import Callable

from facet.engine.engine import Engine
from facet.engine.messages import (
    AdapterState,
    AskLiveView,
    AskStats,
    CacheInfo,
    Cancel,
    EngineInfo,
    FromEngine,
    LiveView,
    LoadAdapter,
    LoadGrammars,
    NewTokens,
    Refused,
    ResetPrefixCache,
    Sleep,
    SleepState,
    Stats,
    Submit,
    ToEngine,
    UnloadAdapter,
    WakeUp,
)
from facet.engine.start_times import StartTimes
from facet.errors import UserError
from facet.step import STEP_SIZES


class EngineService:
    """One `Engine` behind messages. Every request is heard of: tokens until an end, or a refusal."""

    def __init__(self, engine: Engine, info: EngineInfo) -> None:
        self.info = info
        self._engine = engine
        self._busy_seconds = 0.0

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    def handle(self, message: ToEngine, send: Callable[[FromEngine], None]) -> None:
        """Act on one message, except `Shutdown`, which is the loop's own business."""
        if isinstance(message, Submit):
            try:
                self._engine.submit(message.request)
            except UserError as error:
                send(Refused.of(message.request.request_id, error))
        elif isinstance(message, Cancel):
            event = self._engine.cancel(message.request_id)
            if event is not None:
                send(NewTokens(*event))
        elif isinstance(message, AskStats):
            send(self.stats())
        elif isinstance(message, AskLiveView):
            picture = self._engine.picture(max_cells=message.max_cells)
            send(LiveView(time.monotonic(), self._busy_seconds, self.stats(), picture))
        elif isinstance(message, ResetPrefixCache):
            self._engine.reset_prefix_cache()
        elif isinstance(message, LoadGrammars):
            self._engine.load_grammars()
        elif isinstance(message, Sleep | WakeUp):
            send(self._sleep_or_wake(message))
        elif isinstance(message, LoadAdapter | UnloadAdapter):
            send(self._load_or_unload(message))

    def _sleep_or_wake(self, message: Sleep | WakeUp) -> SleepState:
        error = None
        try:
            if isinstance(message, Sleep):
                self._engine.sleep(message.level)
            else:
                self._engine.wake_up()
        except UserError as failure:
            error = str(failure)
        return SleepState(self._engine.is_asleep, error, self._engine.adapters)

    def _load_or_unload(self, message: LoadAdapter | UnloadAdapter) -> AdapterState:
        error = None
        try:
            if isinstance(message, LoadAdapter):
                self._engine.load_adapter(message.source)
            else:
                self._engine.unload_adapter(message.name)
        except UserError as failure:
            error = str(failure)
        return AdapterState(self._engine.adapters, error)

    def step(self) -> list[FromEngine]:
        start = time.monotonic()
        messages: list[FromEngine] = [NewTokens(*event) for event in self._engine.step()]
        messages += [Refused.of(request_id, error) for request_id, error in self._engine.take_refusals()]
        self._busy_seconds += time.monotonic() - start
        return messages

    def stats(self) -> Stats:
        stats = self._engine.stats()
        cache = stats.scheduler.cache
        return Stats(
            num_running=stats.scheduler.num_running,
            num_waiting=stats.scheduler.num_waiting,
            num_preemptions=stats.scheduler.num_preemptions,
            num_steps=stats.work.num_steps,
            num_computed_tokens=stats.work.num_rows,
            num_sampled_tokens=stats.scheduler.num_output_tokens,
            num_corrupted_requests=stats.num_corrupted_requests,
            num_blocks=cache.num_blocks,
            num_blocks_in_tables=cache.num_blocks_in_tables,
            num_blocks_by_kind=cache.num_blocks_by_kind,
            num_blocks_cached=cache.num_blocks_cached,
            num_prompt_tokens=cache.num_prompt_tokens,
            num_prompt_tokens_hit=cache.num_prompt_tokens_hit,
            num_steps_by_size=tuple(zip(STEP_SIZES, stats.work.num_steps_by_size, strict=False)),
            drafts=stats.scheduler.drafts,
            num_short_steps=stats.scheduler.num_short_steps,
            num_long_steps=stats.scheduler.num_long_steps,
        )


def make_info(engine: Engine, folder: str, start_times: StartTimes = ()) -> EngineInfo:
    model, settings = engine.runner.model, engine.settings
    spec, tensors = model.spec, (*model.parameters(), *model.buffers())
    cache = CacheInfo(
        num_blocks=settings.num_blocks,
        block_bytes=settings.layout.total_page_bytes,
        tokens_per_block=tuple((group.kind, group.tokens_per_block) for group in settings.layout.groups),
    )
    return EngineInfo(
        vocab_size=spec.vocab_size,
        eos_token_ids=spec.eos_token_ids,
        max_model_len=settings.max_model_len,
        folder=folder,
        lines=tuple(settings.lines()),
        start_times=start_times,
        media_kinds=tuple(engine.runner.media.towers),
        cache=cache,
        adapters=engine.adapters,
        num_adapter_places=engine.num_adapter_places,
        num_weight_bytes=sum(tensor.nbytes for tensor in tensors),
        num_gpu_bytes=sum(tensor.nbytes for tensor in tensors if tensor.is_cuda)
        + (cache.num_bytes if model.placement.device.type == "cuda" else 0),
    )
