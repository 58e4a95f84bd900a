"""Logs a line every ten seconds: throughput, running and waiting requests, cache usage, prefix hit rate. Silent while
idle."""

import asyncio
import logging
import time

from facet.engine.messages import Stats
from facet.server.engine_bridge import Counters, EngineBridge

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0


async def log_stats(bridge: EngineBridge, interval: float = INTERVAL_SECONDS) -> None:
    """Logs statistics until the task is cancelled or the engine is dead."""
    before, then, was_idle = Counters(), time.monotonic(), True
    while bridge.death is None:
        await asyncio.sleep(interval)
        stats = await bridge.stats()
        now = time.monotonic()
        counters = Counters(bridge.counters.num_prompt_tokens, bridge.counters.num_generation_tokens)
        is_idle = counters == before and (stats is None or stats.num_running + stats.num_waiting == 0)
        if stats is not None and not (is_idle and was_idle):  # one line of zeros, then none
            logger.info(line(stats, counters, before, now - then))
        before, then, was_idle = counters, now, is_idle


def line(stats: Stats, counters: Counters, before: Counters, seconds: float) -> str:
    prompt = (counters.num_prompt_tokens - before.num_prompt_tokens) / seconds
    generation = (counters.num_generation_tokens - before.num_generation_tokens) / seconds
    usage = stats.num_blocks_in_tables / max(1, stats.num_blocks)
    hits = stats.num_prompt_tokens_hit / max(1, stats.num_prompt_tokens)
    return (
        f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: {generation:.1f} "
        f"tokens/s, Running: {stats.num_running} reqs, Waiting: {stats.num_waiting} reqs, GPU KV cache usage: "
        f"{usage:.1%}, Prefix cache hit rate: {hits:.1%}"
    )
