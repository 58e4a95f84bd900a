"""Measures memory and time: what a machine has free, what a loaded model takes, how long its steps take."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from facet.layers.kv_arena import KVArena
from facet.model.gemma import Gemma
from facet.runner.batch import Chunks, make_batch
from facet.runner.compile_ahead import CompileAhead
from facet.runner.memory import StepShape

CPU_SHARE_OF_FREE_MEMORY = 0.25
CPU_CACHE_BYTES = 512 << 20  # for models smaller than this
NUM_TIMES = 4  # that work is timed


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """The memory of a GPU that holds a model's weights, in bytes."""

    total: int
    free: int
    weights: int
    activations: int  # the most that a full step takes beyond weights and cache


def free_gpu_bytes(device: torch.device) -> int:
    """The free memory of a GPU, including that of freed tensors; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def cpu_cache_bytes(weight_bytes: int, *, at_least: int) -> int:
    """The bytes for a cache on a CPU: as much as the weights take, within bounds, since a machine that serves from its
    CPU does other work.

    It is `at_least` enough for one request, and never more than a share of the free memory.
    """
    return min(max(weight_bytes, at_least, CPU_CACHE_BYTES), cpu_cache_limit())


def cpu_cache_limit() -> int:
    return int(free_host_bytes() * CPU_SHARE_OF_FREE_MEMORY)


def free_host_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def measure_gpu_memory(model: Gemma, shape: StepShape, ahead: CompileAhead | None = None) -> MeasuredMemory:
    device = model.placement.device
    weights = torch.cuda.memory_allocated(device)
    activations = measure_activations(model, shape, ahead)
    free, total = torch.cuda.mem_get_info(device)
    return MeasuredMemory(total=total, free=free, weights=weights, activations=activations)


def seconds_of(work: Callable[[], object], device: torch.device, num_times: int = NUM_TIMES) -> float:
    """The shortest of several times, after a first one that nobody counts."""
    seconds = []
    for _ in range(1 + num_times):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


@torch.inference_mode()
def measure_activations(model: Gemma, shape: StepShape, ahead: CompileAhead | None = None) -> int:
    """The most memory a step takes beyond weights and cache: one full step is run and its peak read off.

    The step is a full one: prompts as long as may be up to the budget, and a single row of every request. All of them
    write to the same page.
    """
    device = model.placement.device
    arena = KVArena(shape.layout, 1, device)
    longest = min(shape.max_num_batched_tokens, model.num_positions)
    lens = np.array([1] * shape.max_num_seqs + [longest] * (shape.max_num_batched_tokens // longest), np.int32)
    chunks = Chunks.made_up(
        num_computed=np.zeros_like(lens),
        num_scheduled=lens,
        num_logit_rows=(lens == 1).astype(np.int32),
        seats=np.zeros_like(lens),
    )
    tables = tuple(
        torch.zeros(1, -(-longest // group.tokens_per_block), dtype=torch.int32, device=device)
        for group in shape.layout.groups
    )
    token_ids = torch.zeros(int(lens.sum()), dtype=torch.int64, device=device)

    def run() -> None:
        batch = make_batch(token_ids, chunks, tables, device, skip_upper=False)
        model.logits(model(batch, arena))

    if ahead is not None and ahead.is_needed:
        with ahead.compiled_ahead():
            run()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return peak
