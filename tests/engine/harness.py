"""Engines over tiny models, driven by scripts of requests; dead memory is NaN throughout."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from facet.engine.adapters import Adapters
from facet.engine.engine import Engine
from facet.engine.settings import EngineSettings
from facet.kv_dtypes import choose_kv_dtypes
from facet.kv_layout import KVLayout, make_kv_layout
from facet.layers.kv_arena import KVArena
from facet.media_span import MediaKind
from facet.model.adapters import AdapterBank
from facet.model.draft_model import DraftModel
from facet.model.gemma import Gemma
from facet.progress import Silent
from facet.request import FinishReason, Request
from facet.runner.memory import EncoderCapacity
from facet.runner.runner import NO_TOWERS, Runner
from facet.sampling_params import SamplingParams
from facet.scheduler.drafting import Draftable, Drafter
from facet.token_logprobs import TokenLogprobs
from tests.eager_drafter import EagerDrafter

MAX_MODEL_LEN = 512


def kv_layout(model: Gemma, kv_dtype: str = "auto", *, min_tokens_per_block: int = 4) -> KVLayout:
    """Small blocks, so that short requests have several."""
    dtypes = choose_kv_dtypes(model.spec, asked=kv_dtype, model_dtype="float32")
    return make_kv_layout(model.share, dtype=dtypes, min_tokens_per_block=min_tokens_per_block)


def make_engine(
    model: Gemma,
    *,
    num_blocks: int = 2000,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 512,
    enable_prefix_caching: bool = True,
    fast_prefill: bool = True,
    overlapped: bool = True,
    min_tokens_per_block: int = 4,
    graph_sizes: tuple[int, ...] = (),
    piece_sizes: tuple[int, ...] = (),
    kv_dtype: str = "auto",
    drafter: Drafter | None = None,
    draft_model: DraftModel | None = None,
    towers: Mapping[MediaKind, nn.Module] = NO_TOWERS,
    num_encoder_rows: int = 512,
    max_num_encoded_rows: int = 64,
    max_step_seconds: float | None = None,
    bank: AdapterBank | None = None,
) -> Engine:
    settings = EngineSettings(
        layout=kv_layout(model, kv_dtype, min_tokens_per_block=min_tokens_per_block),
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=enable_prefix_caching,
        keeps_answers=not model.placement.attends_by_role,
        fast_prefill=fast_prefill,
        overlapped=overlapped,
        poison_freed_blocks=True,
        graph_sizes=graph_sizes,
        piece_sizes=piece_sizes,
        encoder=EncoderCapacity(num_rows=num_encoder_rows, num_bytes=0) if towers else None,
        max_num_encoded_rows=max_num_encoded_rows,
        max_step_seconds=max_step_seconds,
    )
    arena = KVArena(settings.layout, num_blocks, model.placement.device)
    arena.poison(torch.arange(num_blocks, device=model.placement.device))  # what nobody wrote must not be read either
    runner = Runner(
        model,
        arena,
        max_num_seqs=max_num_seqs,
        max_model_len=MAX_MODEL_LEN,
        fast_prefill=fast_prefill,
        poison_freed_blocks=True,
        graph_sizes=graph_sizes,
        piece_sizes=piece_sizes,
        draft_model=draft_model,
        towers=towers,
        num_encoder_rows=num_encoder_rows,
    )
    runner.compile_kernels(Silent())
    runner.capture_graphs(Silent())
    adapters = None if bank is None else Adapters(bank, runner.shift_of)
    return Engine(runner, settings, drafter=drafter, adapters=adapters)


@dataclass
class Answer:
    """What one request got."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    error: str | None = None


def run(
    engine: Engine,
    requests: Sequence[Request],
    *,
    arrivals: Mapping[str, int] | None = None,
    cancel_after: Mapping[str, int] | None = None,
    check_every: int = 7,
) -> dict[str, Answer]:
    """Serve the requests, each from its turn of the loop on, some cancelled after so many tokens."""
    arrivals, cancel_after = arrivals or {}, cancel_after or {}
    waiting = sorted(requests, key=lambda request: arrivals.get(request.request_id, 0))
    answers = {request.request_id: Answer() for request in requests}
    turn = 0
    while waiting or engine.has_work:
        while waiting and (arrivals.get(waiting[0].request_id, 0) <= turn or not engine.has_work):
            engine.submit(waiting.pop(0))
        for event in engine.step():
            answer = answers[event.request_id]
            assert answer.finish_reason is None, "a request that has ended is silent"
            answer.num_cached_tokens = event.num_cached_tokens
            answer.error = event.error
            answer.prompt_logprobs += event.prompt_logprobs or []
            answer.token_ids += event.token_ids
            answer.logprobs += event.logprobs or []
            answer.finish_reason = event.finish_reason
            if event.finish_reason is None and len(answer.token_ids) >= cancel_after.get(
                event.request_id, MAX_MODEL_LEN
            ):
                cancelled = engine.cancel(event.request_id)
                assert cancelled is not None
                answer.finish_reason = cancelled.finish_reason
        if turn % check_every == 0:
            engine.check_integrity()
        turn += 1
        assert turn < 200_000, "the loop does not end"
    engine.check_integrity()
    assert all(answer.finish_reason is not None for answer in answers.values()), "every request ends"
    return answers


def mixed_requests(window: int, vocab_size: int, *, count: int, seed: int) -> list[Request]:
    """Lengths from one token to six windows, shared beginnings, settings of all sorts."""
    choose = random.Random(seed)
    stems = [[choose.randrange(3, vocab_size - 10) for _ in range(4 * window)] for _ in range(3)]
    requests = []
    for index in range(count):
        length = choose.choice([1, 2, window - 1, window, window + 1, choose.randrange(1, 6 * window), 6 * window])
        own = [choose.randrange(3, vocab_size - 10) for _ in range(length)]
        stem = choose.choice([[], *stems])[: choose.choice([choose.randrange(4 * window), 4 * window])]
        token_ids = [2, *([*stem, *own] if choose.random() < 0.6 else own)][: max(1, 6 * window)]
        requests.append(
            Request(
                request_id=str(index),
                prompt_token_ids=tuple(token_ids),
                sampling=_mixed_sampling(choose, index),
                eos_token_ids=(1,),
                priority=choose.choice([0, 0, 0, 1]),
                arrival_time=float(index),
            )
        )
    return requests


def _mixed_sampling(choose: random.Random, index: int) -> SamplingParams:
    base = SamplingParams(
        temperature=0.0, max_tokens=choose.choice([choose.randrange(1, 10), 4, 6, 20]), ignore_eos=True, logprobs=2
    )
    return choose.choice(
        [
            base,
            base,
            base,
            replace(base, prompt_logprobs=1),
            replace(base, repetition_penalty=1.3, presence_penalty=0.5),
            replace(base, logit_bias={7: 2.0, 9: -3.0}, min_tokens=1, ignore_eos=False, stop_token_ids=(11, 12)),
            replace(base, temperature=0.8, top_k=20, top_p=0.9, seed=index),
        ]
    )


def alone(request: Request) -> Request:
    """The same request, to be run by itself: whatever it stood in line for no longer matters."""
    return replace(request, priority=0, arrival_time=0.0)


class Rememberer(EagerDrafter):
    """Drafts from earlier answers to the same requests, with mistakes.

    Right drafts come from `answers`, which an engine without drafts gave; every so often one is replaced, and what
    follows it still fits the answer, as a drafter that lost its way would have it.
    """

    max_num_drafts = 5

    def __init__(self, requests: Sequence[Request], answers: Mapping[str, Answer], vocab_size: int, seed: int) -> None:
        self._known = [(request.prompt_token_ids, answers[request.request_id].token_ids) for request in requests]
        self._vocab_size = vocab_size
        self._random = random.Random(seed)
        self.num_drafts = 0

    def propose(self, requests: Sequence[Draftable]) -> dict[int, list[int]]:
        drafts = {request.request_number: self._draft(request) for request in self.draftable(requests)}
        self.num_drafts += sum(map(len, drafts.values()))
        return drafts

    def _draft(self, request: Draftable) -> list[int]:
        length = len(request.output_token_ids)
        ways_on = [
            token_ids[length : length + self._random.randint(0, request.max_num_drafts)]
            for prompt, token_ids in self._known
            if prompt == request.prompt_token_ids and token_ids[:length] == request.output_token_ids
        ]
        is_wrong = self._random.choice([0.0, 0.1, 0.6])
        return [
            self._random.randrange(self._vocab_size) if self._random.random() < is_wrong else token_id
            for token_id in (self._random.choice(ways_on) if ways_on else ())
        ]
