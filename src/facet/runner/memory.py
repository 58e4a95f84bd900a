"""How much memory the cache may have, once the weights are in place."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from facet.kernels.paged_attention.invariant.plan import PARTIALS_LIMIT
from facet.kernels.paged_attention.prefill.plan import max_scratch_bytes
from facet.kv_layout import KVLayout
from facet.layers.attention import heads_of
from facet.layers.kv_arena import KVArena
from facet.model.gemma import Gemma
from facet.model_spec import ModelSpec
from facet.runner.batch import Spans, make_batch
from facet.sampling import max_device_bytes

CPU_SHARE_OF_FREE_MEMORY = 0.25
# Allowed for what a driver keeps of one captured half of a decode step, beside the tensors.
BYTES_PER_GRAPH = 8 << 20
# The same for a piece of a step, which is one layer rather than half of them.
BYTES_PER_PIECE = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Where a GPU's memory goes, in bytes. Weights and activations are measured, the rest follows from shapes."""

    total: int
    weights: int
    activations: int  # the most a step takes for a moment
    graphs: int  # set aside for them before the cache takes the rest
    sampling: int  # the most that requests' settings can make it take
    cache: int
    graphs_taken: int | None = None  # measured once they are captured

    def line(self) -> str:
        def gib(num_bytes: int) -> str:
            return f"{num_bytes / 2**30:.2f}"

        taken = "" if self.graphs_taken is None else f" ({gib(self.graphs_taken)} taken)"
        return (
            f"GPU memory, of {gib(self.total)} GiB: weights {gib(self.weights)}, activations {gib(self.activations)}, "
            f"graphs {gib(self.graphs)}{taken}, sampling {gib(self.sampling)}, KV cache {gib(self.cache)}; the rest "
            "stays free."
        )


def free_gpu_bytes(device: torch.device) -> int:
    """What nobody has taken of a GPU, tensors that were freed not counted as taken; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def cpu_cache_bytes() -> int:
    return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * CPU_SHARE_OF_FREE_MEMORY)


def divide_gpu_memory(
    model: Gemma,
    layout: KVLayout,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    gpu_memory_utilization: float,
    graph_sizes: Sequence[int],
    piece_sizes: Sequence[int],
) -> GpuMemory:
    """What each user of the memory needs, and what is left for keys and values."""
    device, vocab_size = model.placement.device, model.spec.vocab_size
    weights = torch.cuda.memory_allocated(device)
    activations = measure_activations(
        model, layout, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs
    )
    scratch = scratch_bytes(
        model.spec,
        layout,
        max_model_len=model.num_positions,
        max_num_batched_tokens=max_num_batched_tokens,
        value_bytes=model.placement.dtype.itemsize,
    )
    graphs = graph_bytes(
        graph_sizes,
        activations=activations,
        max_num_batched_tokens=max_num_batched_tokens,
        vocab_size=vocab_size,
        value_bytes=model.placement.dtype.itemsize,
    ) + piece_bytes(
        model.spec,
        piece_sizes,
        activations=activations,
        max_num_batched_tokens=max_num_batched_tokens,
        value_bytes=model.placement.dtype.itemsize,
    )
    if model.placement.is_batch_invariant:
        # Nothing is unpacked, but shares of keys leave partial results: of a step in the open, and of captured ones.
        scratch = PARTIALS_LIMIT
        graphs += PARTIALS_LIMIT if graph_sizes else 0
    sampling = max_device_bytes(num_seats=max_num_seqs, vocab_size=vocab_size, context_len=model.num_positions)
    free, total = torch.cuda.mem_get_info(device)
    left = free - total * (1 - gpu_memory_utilization) - activations - scratch - graphs - sampling
    return GpuMemory(
        total=total,
        weights=weights,
        activations=activations + scratch,
        graphs=graphs,
        sampling=sampling,
        cache=max(0, int(left)),
    )


def scratch_bytes(
    spec: ModelSpec, layout: KVLayout, *, max_model_len: int, max_num_batched_tokens: int, value_bytes: int
) -> int:
    """What attention unpacks keys and values into, at most."""
    return max(
        max_scratch_bytes(
            heads_of(spec.layers[group.stores[0].layer]),
            window=group.window,
            max_context_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            element_size=value_bytes,
        )
        for group in layout.groups
    )


def graph_bytes(
    sizes: Sequence[int], *, activations: int, max_num_batched_tokens: int, vocab_size: int, value_bytes: int
) -> int:
    """What captured steps keep for good."""
    largest = max(sizes, default=0)
    # The logits twice, as the product leaves them and in float32, and a few rows of everything else.
    logits = largest * vocab_size * (4 + value_bytes)
    rows = activations * largest // max(max_num_batched_tokens, largest, 1)
    return logits + rows + 2 * len(sizes) * BYTES_PER_GRAPH


def piece_bytes(
    spec: ModelSpec, sizes: Sequence[int], *, activations: int, max_num_batched_tokens: int, value_bytes: int
) -> int:
    """What captured pieces of lower layers keep for good: their memory pool, and the buffers where they meet."""
    largest = max(sizes, default=0)
    num_streams = 1 if spec.altup is None else spec.altup.num_streams
    query_widths = {layer.attention: layer.query_width for layer in spec.layers}
    buffers = largest * value_bytes * (num_streams * spec.hidden_size + 2 * sum(query_widths.values()))
    rows = activations * largest // max(max_num_batched_tokens, largest, 1)
    return buffers + rows + len(sizes) * (spec.num_layers + 1) * BYTES_PER_PIECE


@torch.inference_mode()
def measure_activations(model: Gemma, layout: KVLayout, *, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """The most memory a step takes beyond weights and cache: one full step is run and its peak read off.

    The step is a full one: prompts as long as may be up to the budget, and a single row of every request. All of them
    write to the same page.
    """
    device = model.placement.device
    arena = KVArena(layout, 1, device)
    longest = min(max_num_batched_tokens, model.num_positions)
    lens = np.array([1] * max_num_seqs + [longest] * (max_num_batched_tokens // longest), np.int32)
    spans = Spans(
        num_computed=np.zeros_like(lens),
        num_scheduled=lens,
        num_logit_rows=(lens == 1).astype(np.int32),
        seats=np.zeros_like(lens),
    )
    tables = tuple(
        torch.zeros(1, -(-longest // group.tokens_per_block), dtype=torch.int32, device=device)
        for group in layout.groups
    )
    token_ids = torch.zeros(int(lens.sum()), dtype=torch.int64, device=device)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    batch = make_batch(token_ids, spans, tables, device, skip_upper=False)
    model.logits(model(batch, arena))
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return peak
