"""A scheduler whose steps take made-up times, by a clock that only they move on."""

from collections.abc import Callable
from dataclasses import dataclass, field

from facet.kv_cache.accountant import blocks_for
from facet.kv_cache.manager import KVCacheManager
from facet.kv_layout import KVLayout
from facet.request import Request
from facet.scheduler.limits import Limits
from facet.scheduler.scheduler import Scheduler
from facet.step import StepPlan, StepResult

SecondsOf = Callable[[StepPlan], float]


@dataclass
class Timeline:
    """What became of every request, on the clock."""

    now: float = 0.0
    token_times: dict[str, list[float]] = field(default_factory=dict)
    steps: list[tuple[StepPlan, float]] = field(default_factory=list)

    def seconds_per_token(self) -> dict[str, float]:
        return {name: (times[-1] - times[0]) / (len(times) - 1) for name, times in self.token_times.items()}


def run_timed(
    layout: KVLayout, requests: list[Request], seconds_of: SecondsOf, *, max_at_once: int, limits: Limits
) -> Timeline:
    """The overlapped loop: a step is planned before the one before it is settled. So many requests at a time."""
    num_tokens = max(len(request.prompt_token_ids) + (request.sampling.max_tokens or 0) for request in requests)
    num_blocks = blocks_for(
        layout,
        num_sequences=max_at_once,
        num_tokens=num_tokens,
        max_num_batched_tokens=limits.max_num_batched_tokens,
    )
    cache = KVCacheManager(
        layout,
        num_blocks=num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        enable_prefix_caching=False,
    )
    scheduler, timeline = Scheduler(cache, limits), Timeline()
    waiting, num_open = list(requests), 0
    in_flight: StepPlan | None = None
    while waiting or num_open:
        while waiting and num_open < max_at_once:
            scheduler.submit(waiting.pop(0))
            num_open += 1
        schedule = scheduler.plan()
        started = None if schedule.is_empty else scheduler.commit(schedule)
        if in_flight is not None:
            seconds = seconds_of(in_flight)
            timeline.now += seconds
            timeline.steps.append((in_flight, seconds))
            scheduler.learn(in_flight, seconds)
            for event in scheduler.settle(in_flight, StepResult(token_ids=((1,),) * int(in_flight.samples.sum()))):
                timeline.token_times.setdefault(event.request_id, []).append(timeline.now)
                num_open -= event.finish_reason is not None
        in_flight = started
    return timeline
