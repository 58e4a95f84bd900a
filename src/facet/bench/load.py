"""Sends conversations when they are due, with a limit on the requests in flight. Measures nothing itself."""

import asyncio
import contextlib
import time
from collections.abc import Sequence

from facet.bench.backends import Said
from facet.bench.client import BenchClient
from facet.bench.dialogue import Conversation
from facet.bench.outcome import Outcome, not_sent
from facet.progress import Advance


async def run_load(
    client: BenchClient,
    conversations: Sequence[Conversation],
    arrivals: Sequence[float],
    max_concurrency: int | None,
    advance: Advance,
) -> list[Outcome]:
    """Every request's outcome, conversation by conversation.

    Turns of a conversation follow each other; each waits for a place again, so that with more conversations than
    places all of them have had their first turn before any has its second. After a failure the turns that are left are
    not sent, and count as failed.
    """
    room = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    beginning = time.perf_counter()

    async def converse(conversation: Conversation, due: float) -> list[Outcome]:
        outcomes: list[Outcome] = []
        past: list[Said] = []
        for turn in conversation:
            async with room:
                outcome, answer = await client.send(past, turn, due)
            outcomes.append(outcome)
            advance(1)
            if not outcome.is_success:
                num_left = len(conversation) - len(outcomes)
                advance(num_left)
                return [*outcomes, *[not_sent(due)] * num_left]
            past.append(Said(turn, answer, outcome.num_output_tokens))
            due = time.perf_counter()
        return outcomes

    tasks = []
    for conversation, arrival in zip(conversations, arrivals, strict=True):
        due = beginning + arrival
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(converse(conversation, due)))
    return [outcome for outcomes in await asyncio.gather(*tasks) for outcome in outcomes]
