"""Attention over paged keys and values in Triton: one kernel for runs of rows, one, split over keys, for single rows.

Same meaning as `reference.py`. Both walk a sequence's visible keys in tiles and keep a running softmax. Query heads
that share a key head are rows of one matrix product, so a key is read once for all of them. Single rows look every
tile's blocks up in the block table; for runs, keys and values are unpacked first. Blocks behind the window are never
touched. Block sizes are compile-time constants and need not be powers of two.
"""

import numpy as np
import torch
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention.cache import HeadShape, KeyRecipe, LayerCache
from facet.kernels.paged_attention.decode.kernel import attend_single_rows
from facet.kernels.paged_attention.plans import TritonPlan
from facet.kernels.paged_attention.prefill.plan import LEAST_RUN, MOST_ROWS_OF_SHORT_RUNS, Run, plan_runs
from facet.kernels.paged_attention.prefill.runs import attend_runs
from facet.transfer import arrays_on_device


def plan_attention(
    rows: AttentionRows, block_table: Tensor, heads: HeadShape, *, window: int | None, tokens_per_block: int
) -> TritonPlan:
    lens, contexts = np.array(rows.host_query_lens, np.int64), np.array(rows.host_context_lens, np.int64)
    starts = np.cumsum(lens) - lens
    is_short = lens < LEAST_RUN
    if lens[is_short & (lens > 1)].sum() > MOST_ROWS_OF_SHORT_RUNS:
        is_short = lens == 1
    single = np.flatnonzero(np.repeat(is_short, lens)).astype(np.int32)
    single_rows = None
    if len(single) and single[-1] != len(single) - 1:
        (single_rows,) = arrays_on_device((single,), block_table.device)
    longest = int(contexts[is_short].max(initial=0))
    runs = [
        Run(first_row=int(starts[index]), num_rows=int(lens[index]), context_len=int(contexts[index]))
        for index in np.flatnonzero(~is_short)
    ]
    return TritonPlan(
        heads=heads,
        positions=rows.positions,
        seats=rows.seats,
        block_table=block_table,
        window=window or 0,
        tokens_per_block=tokens_per_block,
        num_single=len(single),
        single_rows=single_rows,
        longest_single=min(longest, window) if window else longest,
        arrivals=torch.zeros(len(single), heads.num_kv_heads, dtype=torch.int32, device=block_table.device),
        runs=plan_runs(runs, heads, window=window, device=block_table.device) if runs else None,
    )


def paged_attention(
    queries: Tensor,
    cache: LayerCache,
    plan: TritonPlan,
    *,
    scale: float,
    key_recipe: KeyRecipe | None = None,
    out: Tensor | None = None,
) -> Tensor:
    assert out is None or out.is_contiguous(), "rows of the result lie one after another"
    output = torch.empty_like(queries) if out is None else out
    queries = queries.contiguous()
    if plan.num_single:
        attend_single_rows(queries, output, cache, plan, scale, key_recipe)
    if plan.runs is not None:
        attend_runs(queries, output, cache, plan, scale, key_recipe)
    return output
