"""How much memory the cache may have, once the weights are in place."""

import os

import numpy as np
import torch

from facet.kv_layout import KVLayout
from facet.layers.kv_arena import KVArena
from facet.model.gemma import Gemma
from facet.runner.batch import Spans, make_batch
from facet.sampling import max_device_bytes

CPU_SHARE_OF_FREE_MEMORY = 0.25


def cache_bytes(
    model: Gemma,
    layout: KVLayout,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    gpu_memory_utilization: float,
) -> int:
    """What is left for keys and values on the model's device."""
    device = model.placement.device
    if device.type == "cpu":
        return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * CPU_SHARE_OF_FREE_MEMORY)
    activations = measure_activations(
        model, layout, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs
    )
    sampling = max_device_bytes(
        num_rows=max_num_seqs, vocab_size=model.spec.vocab_size, context_len=model.num_positions
    )
    free, total = torch.cuda.mem_get_info(device)
    return int(free - total * (1 - gpu_memory_utilization) - activations - sampling)


@torch.inference_mode()
def measure_activations(model: Gemma, layout: KVLayout, *, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """The most memory a step takes beyond weights and cache: one full step is run and its peak read off.

    The step is one long prompt, every row of which writes to the same page, and as many rows of logits as requests
    can sample at once.
    """
    device = model.placement.device
    arena = KVArena(layout, 1, device)
    num_tokens = min(max_num_batched_tokens, model.num_positions)
    spans = Spans(
        num_computed=np.zeros(1, np.int32),
        num_scheduled=np.full(1, num_tokens, np.int32),
        num_logit_rows=np.full(1, min(max_num_seqs, num_tokens), np.int32),
        table_rows=np.zeros(1, np.int32),
    )
    tables = tuple(
        torch.zeros(1, -(-num_tokens // group.tokens_per_block), dtype=torch.int32, device=device)
        for group in layout.groups
    )
    token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    batch = make_batch(token_ids, spans, tables, device, skip_upper=False)
    model.logits(model(batch, arena))
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return peak
