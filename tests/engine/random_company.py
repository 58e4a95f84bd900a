"""Random batches of requests beside which each must get the answer that it gets alone, bit for bit.

Company changes which rows share a product, where prompts are cut into chunks, what is found in the prefix cache and who
is put back and computed anew.
"""

import random
from dataclasses import dataclass, replace

from facet.engine.engine import Engine
from facet.kernels.paged_attention.invariant_reference import KEYS_PER_TILE
from facet.kv_cache.accountant import need_of
from facet.model.gemma import Gemma
from facet.request import Request
from tests.engine.harness import Answer, alone, kv_layout, mixed_requests, run

NUM_REQUESTS = 8
NUM_GROWING = 8
FEW_TOKENS = 3
# Of those who are to be put back: answers that outgrow the memory.
MORE_TOKENS = 8


@dataclass(frozen=True)
class Company:
    """How batches are served, and how many."""

    chunk: int
    num_batches: int
    prefix_caching: bool = True
    overlapped: bool = True
    is_short_of_memory: bool = False
    room: float = 1.5  # then: memory for so many of the longest request
    has_long_prompt: bool = False

    def num_blocks(self, model: Gemma, requests: list[Request], kv_dtype: str = "auto") -> int:
        """Enough for the longest request and a part of another, or plenty."""
        if not self.is_short_of_memory:
            return 600
        longest = max(len(request.prompt_token_ids) + MORE_TOKENS for request in self.chosen(requests))
        return int(self.room * need_of(kv_layout(model, kv_dtype), 0, num_tokens=longest).num_blocks)

    def chosen(self, requests: list[Request]) -> list[Request]:
        """From what `draw_requests` drew."""
        if self.is_short_of_memory:
            return requests[-NUM_GROWING:]
        return requests[: NUM_REQUESTS + self.has_long_prompt]


def draw_requests(window: int, vocab_size: int, seed: int) -> list[Request]:
    """Settings of all sorts. One has a prompt of more than one tile of keys; those behind it want longer answers."""
    drawn = mixed_requests(window, vocab_size, count=NUM_REQUESTS, seed=seed)
    requests = [_limited(request, FEW_TOKENS) for request in drawn]
    choose = random.Random(0)
    token_ids = tuple(choose.randrange(3, vocab_size) for _ in range(KEYS_PER_TILE + 30))
    with_long_prompt = replace(requests[0], request_id="long", prompt_token_ids=token_ids)
    growing = [
        replace(_limited(request, MORE_TOKENS), request_id=f"growing {request.request_id}")
        for request in drawn[:NUM_GROWING]
    ]
    return [*requests, with_long_prompt, *growing]


def _limited(request: Request, most: int) -> Request:
    most = min(request.sampling.max_tokens or most, most)
    return replace(request, sampling=replace(request.sampling, max_tokens=most, logprobs=3))


def answers_alone(engine: Engine, requests: list[Request]) -> dict[str, Answer]:
    answers = {}
    for request in requests:
        answers |= run(engine, [alone(request)], check_every=1000)
    return answers


def check_batches(
    engine: Engine, company: Company, requests: list[Request], expected: dict[str, Answer], seed: str
) -> None:
    """At least as many batches as were asked for: more until somebody was put back, where that is wanted."""
    choose, num_batches = random.Random(seed), 0
    while num_batches < company.num_batches or (company.is_short_of_memory and _num_preemptions(engine) == 0):
        num_batches += 1
        assert num_batches < 40, "nobody is ever put back"
        # Where someone is to be put back, several begin at once.
        size = choose.randrange(5, 8) if company.is_short_of_memory else choose.randrange(2, 4)
        batch = choose.sample(company.chosen(requests), size)
        latest = 0 if company.is_short_of_memory else 2
        arrivals = {request.request_id: choose.randint(0, latest) for request in batch}
        got = run(engine, batch, arrivals=arrivals, check_every=1000)
        for request in batch:
            ours, theirs = got[request.request_id], expected[request.request_id]
            assert ours.token_ids == theirs.token_ids
            assert ours.logprobs == theirs.logprobs
            assert ours.prompt_logprobs == theirs.prompt_logprobs
            assert ours.finish_reason == theirs.finish_reason
    stats = engine.stats().scheduler
    assert stats.cache.num_prompt_tokens_hit > 0 or not (company.has_long_prompt and company.prefix_caching)


def _num_preemptions(engine: Engine) -> int:
    return engine.stats().scheduler.num_preemptions
