"""Runs engines over a model that is already loaded, each with its own cache, and records transcripts."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from facet.config import EngineConfig
from facet.doctor.judge import ScoredToken, Transcript
from facet.engine.engine import Engine
from facet.engine.settings import EngineSettings, resolve_kv_dtypes
from facet.errors import CapacityError
from facet.kv_cache.accountant import blocks_for, need_of
from facet.kv_layout import KVLayout, make_kv_layout
from facet.layers.kv_arena import KVArena
from facet.model.gemma import Gemma
from facet.progress import Silent
from facet.request import Request
from facet.runner.measuring import cpu_cache_limit
from facet.runner.runner import Runner
from facet.token_logprobs import TokenLogprobs

# The share of a GPU's free memory that one cache at a time gets.
_SHARE_OF_FREE_MEMORY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How an engine runs. The defaults have all optional features off: the baseline."""

    max_num_seqs: int = 1
    chunk: int | None = None  # tokens of prompts per step; None: whole prompts
    kv_dtype: str = "auto"
    prefix_caching: bool = False
    fast_prefill: bool = False
    overlapped: bool = False
    poison: bool = False  # dead memory is NaN, and so is what was never written
    is_short_of_memory: bool = False  # for one and a half of the longest requests
    graph_sizes: tuple[int, ...] = ()
    piece_sizes: tuple[int, ...] = ()


def make_engine(model: Gemma, setup: Setup) -> Engine:
    device, longest = model.placement.device, model.num_positions
    chunk = setup.chunk or longest
    dtypes = resolve_kv_dtypes(EngineConfig(kv_cache_dtype=setup.kv_dtype), model)
    layout = make_kv_layout(model.spec, dtype=dtypes)
    num_blocks = _num_blocks(layout, model, setup, chunk)
    settings = EngineSettings(
        keeps_answers=not model.placement.attends_by_role,
        layout=layout,
        num_blocks=num_blocks,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=chunk,
        max_model_len=longest,
        enable_prefix_caching=setup.prefix_caching,
        fast_prefill=setup.fast_prefill,
        overlapped=setup.overlapped,
        poison_freed_blocks=setup.poison,
        graph_sizes=setup.graph_sizes,
        piece_sizes=setup.piece_sizes,
    )
    arena = KVArena(layout, num_blocks, device)
    if setup.poison:
        arena.poison(torch.arange(num_blocks, device=device))
    runner = Runner(
        model,
        arena,
        max_num_seqs=setup.max_num_seqs,
        max_model_len=longest,
        fast_prefill=setup.fast_prefill,
        poison_freed_blocks=setup.poison,
        graph_sizes=setup.graph_sizes,
        piece_sizes=setup.piece_sizes,
    )
    # Kernels are compiled when they are used: on a GPU that has never run Facet, all that a server may need, for every
    # storage type, would take longer than the examination.
    runner.capture_graphs(Silent())
    return Engine(runner, settings)


def _num_blocks(layout: KVLayout, model: Gemma, setup: Setup, chunk: int) -> int:
    """How many blocks an engine gets: enough for all requests at once if there is memory; with less, some requests
    wait."""
    device, longest = model.placement.device, model.num_positions
    least = 1 + need_of(layout, 0, num_tokens=longest).num_blocks
    if setup.is_short_of_memory:
        return least + least // 2
    wanted = blocks_for(layout, num_sequences=setup.max_num_seqs, num_tokens=longest, max_num_batched_tokens=chunk)
    free = cpu_cache_limit()
    if device.type == "cuda":
        gc.collect()  # what earlier engines had counts as free
        torch.cuda.empty_cache()
        free = int(torch.cuda.mem_get_info(device)[0] * _SHARE_OF_FREE_MEMORY)
    if least * layout.total_page_bytes > free:
        raise CapacityError(
            f"One request of {longest} tokens needs {least * layout.total_page_bytes / 2**20:,.0f} MiB for its keys, "
            f"but {free / 2**20:,.0f} MiB are left beside the weights. Use a smaller model, or lower --max-model-len."
        )
    return max(least, min(wanted, free // layout.total_page_bytes))


@dataclass(slots=True)
class _Collected:
    tokens: list[ScoredToken] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    error: str | None = None


def run_together(engine: Engine, requests: Sequence[Request]) -> dict[str, Transcript]:
    """Runs all requests together, as many at once as the engine allows; transcripts by request id."""
    collected = {request.request_id: _Collected() for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for event in engine.step():
            record = collected[event.request_id]
            record.prompt_logprobs += [entry.logprobs[0] for entry in event.prompt_logprobs or ()]
            record.tokens += map(_scored, event.token_ids, event.logprobs or ())
            if event.finish_reason == "error":
                record.error = event.error or "no reason was given"
    engine.check_integrity()
    return {
        request_id: Transcript(
            tokens=tuple(record.tokens), prompt_logprobs=tuple(record.prompt_logprobs), error=record.error
        )
        for request_id, record in collected.items()
    }


def run_alone(engine: Engine, requests: Sequence[Request]) -> dict[str, Transcript]:
    """Runs the requests one after the other."""
    transcripts: dict[str, Transcript] = {}
    for request in requests:
        transcripts |= run_together(engine, [request])
    return transcripts


def _scored(token_id: int, logprobs: TokenLogprobs) -> ScoredToken:
    best = zip(logprobs.token_ids[1:], logprobs.logprobs[1:], strict=True)
    return ScoredToken(token_id, logprobs.logprobs[0], tuple(best))
