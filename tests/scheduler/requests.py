"""Requests and engines for scheduler tests, and what a request must produce alone."""

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from facet.kv_cache.manager import KVCacheManager
from facet.kv_layout import KVLayout
from facet.request import FinishReason, Request
from facet.sampling_params import SamplingParams
from facet.scheduler.drafting import Draftable, Drafter
from facet.scheduler.limits import Limits
from facet.scheduler.scheduler import Scheduler
from tests.eager_drafter import EagerDrafter
from tests.scheduler.fake_runner import FakeEngine, FakeRunner, Sampler

VOCAB_SIZE = 23
EOS = 7


def sample(request: Request, token_ids: Sequence[int]) -> int:
    """The next token, made from all tokens before it."""
    return zlib.crc32(bytes(token_ids)) % VOCAB_SIZE


def make_request(
    request_id: str,
    prompt_token_ids: Sequence[int],
    *,
    max_tokens: int | None = 16,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    stop_token_ids: Sequence[int] = (),
    prompt_logprobs: int | None = None,
    **fields: Any,
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt_token_ids),
        sampling=SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            ignore_eos=ignore_eos,
            stop_token_ids=tuple(stop_token_ids),
            prompt_logprobs=prompt_logprobs,
        ),
        eos_token_ids=(EOS,),
        **fields,
    )


def continuation(token_ids: Sequence[int]) -> int:
    """What any request with these tokens goes on with."""
    return sample(make_request("any", [1]), token_ids)


def alone(request: Request, max_model_len: int, sample: Sampler = sample) -> tuple[list[int], FinishReason]:
    """What the request must produce whatever runs beside it, written without any of the engine's code."""
    tokens = list(request.prompt_token_ids)
    outputs: list[int] = []
    sampling = request.sampling
    while True:
        token_id = sample(request, tokens)
        if token_id is None:
            return outputs, "error"
        tokens.append(token_id)
        outputs.append(token_id)
        is_end = (token_id == EOS and not sampling.ignore_eos) or token_id in sampling.stop_token_ids
        if is_end and len(outputs) >= sampling.min_tokens:
            return outputs, "stop"
        if len(outputs) == sampling.max_tokens or len(tokens) == max_model_len:
            return outputs, "length"


def make_engine(
    layout: KVLayout,
    *,
    num_blocks: int,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 256,
    overlapped: bool = False,
    max_in_flight: int | None = None,
    ordered_on_one_stream: bool = True,
    enable_prefix_caching: bool = True,
    sample: Sampler = sample,
    checks_integrity: bool = True,
    drafter: Drafter | None = None,
    num_encoder_rows: int = 0,
    max_num_encoded_rows: int = 0,
    max_step_seconds: float | None = None,
    max_num_rows_ahead: int = 0,
    heeds_priority: bool = True,
) -> FakeEngine:
    manager = KVCacheManager(
        layout,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        enable_prefix_caching=enable_prefix_caching,
        ordered_on_one_stream=ordered_on_one_stream,
    )
    limits = Limits(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_num_drafts=0 if drafter is None else drafter.max_num_drafts,
        num_encoder_rows=num_encoder_rows,
        max_num_encoded_rows=max_num_encoded_rows,
        max_step_seconds=max_step_seconds,
        max_num_rows_ahead=max_num_rows_ahead,
        heeds_priority=heeds_priority,
    )
    runner = FakeRunner(
        layout,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        sample=sample,
        guess=drafter.guess if isinstance(drafter, Guesser) else no_guess,
        computes_late=not ordered_on_one_stream,
        num_encoder_rows=num_encoder_rows,
        max_num_encoded_rows=max_num_encoded_rows,
    )
    if max_in_flight is None:
        max_in_flight = 1 if overlapped else 0
    return FakeEngine(
        Scheduler(manager, limits),
        runner,
        max_in_flight=max_in_flight,
        checks_integrity=checks_integrity,
        drafter=drafter,
    )


class Guesser(EagerDrafter):
    """Drafts a random number of tokens, each right with a probability of its own, and waits for others or not.

    `sample` says what is right; it is asked for the request as the drafter knows it, by its tokens alone.
    """

    def __init__(self, sample: Callable[[Sequence[int]], int], *, max_num_drafts: int, seed: int = 0) -> None:
        self.max_num_drafts = max_num_drafts
        self._sample = sample
        self._random = random.Random(seed)

    def is_worth_waiting(self, requests: Sequence[Draftable]) -> bool:
        return self._random.random() < 0.7

    def propose(self, requests: Sequence[Draftable]) -> dict[int, list[int]]:
        chosen = [request for request in self.draftable(requests) if self._random.random() < 0.9]
        return {
            request.request_number: self.guess(
                [*request.prompt_token_ids, *request.output_token_ids],
                self._random.randint(0, self.max_num_drafts + 1),  # one too many is no harm
            )
            for request in chosen
        }

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        chance = self._random.choice([0.0, 0.5, 0.9, 1.0])
        guesses: list[int] = []
        for _ in range(count):
            right = self._random.random() < chance
            guesses.append(self._sample([*tokens, *guesses]) if right else self._random.randrange(VOCAB_SIZE))
        return guesses


class UnseenGuesser(Guesser):
    """Guesses on the device too, a random number of tokens behind a step, and lets some be verified unseen."""

    _num_on_their_way = 0

    def num_ahead(self, num_running: int) -> int:
        self._num_on_their_way = self._random.choice([0, self.max_num_drafts, self._random.randint(1, 9)])
        return self._num_on_their_way

    def num_unseen(self, requests: Sequence[Draftable]) -> dict[int, int]:
        most = min(self._num_on_their_way, self.max_num_drafts)
        return {request.request_number: self._random.randint(most // 2, most) for request in requests}


def no_guess(tokens: Sequence[int], count: int) -> list[int]:
    raise AssertionError("nobody is there to guess")
