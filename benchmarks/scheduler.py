"""Times the CPU work of one step: deciding, committing and settling, for many running requests with long contexts.

    python -m benchmarks.scheduler

Every request has 32K tokens and decodes one token a step in the cache of an E4B-shaped model (blocks of 16 sliding and
40 global tokens), the overlapped loop's order of verbs. No model runs. Medians over steps, in microseconds;
`worst` is the slowest hundredth of whole steps. The target is 300 µs for plan at 256 requests. `encode` and `decode`
are what it takes to send a plan to another process; they are no part of `all`.
"""

import argparse
import itertools
import random
import time
from statistics import median, quantiles

from facet.engine.step_codec import decode_plan, encode_plan
from facet.kv_cache.accountant import blocks_for
from facet.kv_cache.manager import KVCacheManager
from facet.kv_layout import KVGroup, KVLayout
from facet.model_spec import AttentionKind
from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.scheduler.encoding import EncoderBooks
from facet.scheduler.limits import Limits
from facet.scheduler.plan import plan_step
from facet.scheduler.scheduler import Scheduler
from facet.step import StepPlan, StepResult

NUM_TOKENS = 32_768
MAX_MODEL_LEN = 131_072
MAX_NUM_BATCHED_TOKENS = 8_192
PAGE_BYTES = 655_360
VERBS = ("view", "plan", "cache.commit", "queues.advance", "settle")
BYTES = ("encode", "decode")


def make_layout() -> KVLayout:
    def group(kind: AttentionKind, window: int | None, bytes_per_token: int) -> KVGroup:
        return KVGroup(
            kind=kind,
            window=window,
            bytes_per_token=bytes_per_token,
            tokens_per_block=PAGE_BYTES // bytes_per_token,
            stores=(),
        )

    groups = (group("sliding", 512, 40_960), group("global", None, 16_384))
    return KVLayout(page_bytes=PAGE_BYTES, groups=groups)


def make_scheduler(num_requests: int) -> Scheduler:
    layout = make_layout()
    num_blocks = blocks_for(
        layout,
        num_sequences=num_requests + 8,
        num_tokens=NUM_TOKENS + 2_000,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
    )
    manager = KVCacheManager(layout, num_blocks=num_blocks, max_num_seqs=num_requests, max_model_len=MAX_MODEL_LEN)
    limits = Limits(
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS, max_num_seqs=num_requests, max_model_len=MAX_MODEL_LEN
    )
    return Scheduler(manager, limits)


def fill(scheduler: Scheduler, num_requests: int) -> None:
    """Let every request compute its prompt. Lengths differ, so that blocks fill up at different times."""
    rng = random.Random(0)
    for index in range(num_requests):
        prompt = tuple(rng.choices(range(1000), k=NUM_TOKENS - rng.randrange(640)))
        sampling = SamplingParams(max_tokens=None, seed=index)
        scheduler.submit(Request(request_id=str(index), prompt_token_ids=prompt, sampling=sampling))
    while scheduler.stats().num_waiting:
        plan = scheduler.commit(scheduler.plan())
        scheduler.settle(plan, result_of(plan))


def result_of(plan: StepPlan) -> StepResult:
    """Any tokens that do not repeat themselves, so that nobody ends."""
    first = 13 * plan.step
    return StepResult(token_ids=tuple((token_id,) for token_id in range(first, first + int(plan.samples.sum()))))


def measure(scheduler: Scheduler, num_steps: int) -> tuple[dict[str, float], float, float]:
    times: dict[str, list[float]] = {verb: [] for verb in (*VERBS, *BYTES)}
    totals: list[float] = []
    in_flight: StepPlan | None = None
    queues, cache, limits = scheduler.queues, scheduler.kv_cache, scheduler.limits
    for _ in range(num_steps):
        clock = [time.perf_counter()]
        queues_view, cache_view = queues.view(), cache.view()
        clock.append(time.perf_counter())
        schedule = plan_step(queues_view, cache_view, EncoderBooks(0), limits)
        clock.append(time.perf_counter())
        plan = cache.commit(schedule)
        clock.append(time.perf_counter())
        queues.advance(schedule)
        clock.append(time.perf_counter())
        result = result_of(in_flight) if in_flight is not None else None
        settle_start = time.perf_counter()
        if in_flight is not None and result is not None:
            scheduler.settle(in_flight, result)
        settle = time.perf_counter() - settle_start
        in_flight = plan
        sent = [time.perf_counter()]
        message = encode_plan(plan)
        sent.append(time.perf_counter())
        decode_plan(message)
        sent.append(time.perf_counter())
        for verb, (start, stop) in zip(BYTES, itertools.pairwise(sent), strict=True):
            times[verb].append(1e6 * (stop - start))
        parts = [stop - start for start, stop in itertools.pairwise(clock)] + [settle]
        for verb, seconds in zip(VERBS, parts, strict=True):
            times[verb].append(1e6 * seconds)
        totals.append(1e6 * sum(parts))
    return {verb: median(values) for verb, values in times.items()}, median(totals), quantiles(totals, n=100)[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-requests", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--num-steps", type=int, default=1000)
    options = parser.parse_args()
    print(f"{'requests':>8} " + " ".join(f"{verb:>14}" for verb in (*VERBS, "all", "worst", *BYTES)) + "   (µs)")
    for num_requests in options.num_requests:
        scheduler = make_scheduler(num_requests)
        fill(scheduler, num_requests)
        medians, total, worst = measure(scheduler, options.num_steps)
        columns = (*(medians[verb] for verb in VERBS), total, worst, *(medians[verb] for verb in BYTES))
        print(f"{num_requests:>8} " + " ".join(f"{value:>14.0f}" for value in columns), flush=True)


if __name__ == "__main__":
    main()
