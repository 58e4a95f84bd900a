"""Attention of a step on a GPU: plans which rows are decoded and which are prefilled, and chooses the kernels.

Decode kernels are asked in turn whether they take a layer's rows, and `decode/kernel.py` gets what none of them takes;
README.md shows the outcome.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.hopper import runs_on_hopper
from facet.kernels.paged_attention.cache import HeadShape, KeyRecipe, LayerCache
from facet.kernels.paged_attention.decode.fixed import choose_fixed_tuning, rows_of_partials
from facet.kernels.paged_attention.decode.grouped import attend_groups, gains_by_groups
from facet.kernels.paged_attention.decode.hopper.tuning import choose_ring_tuning, decodes_in_ring
from facet.kernels.paged_attention.decode.in_turn import attend_in_turn, can_take_turns
from facet.kernels.paged_attention.decode.kernel import attend_rows
from facet.kernels.paged_attention.decode.plan import PARTIALS_LIMIT, DecodePlan, plan_decode
from facet.kernels.paged_attention.decode.readers import SEPARATE, SEPARATE_8BIT, SHARED, SHARED_8BIT, Reader
from facet.kernels.paged_attention.decode.tuning import choose_decode_tuning
from facet.kernels.paged_attention.plan import PagedRows
from facet.kernels.paged_attention.prefill.hopper import ROWS_PER_WARPGROUP
from facet.kernels.paged_attention.prefill.plan import LEAST_RUN, MOST_ROWS_OF_SHORT_RUNS, PrefillPlan, Run, plan_runs
from facet.kernels.paged_attention.prefill.runs import PrefillKernel, attend_runs
from facet.kernels.paged_attention.prefill.separate import SeparateKernel
from facet.kernels.paged_attention.prefill.shared import SharedKernel
from facet.kernels.paged_attention.prefill.tuning import separate_tuning, shared_tuning
from facet.kernels.paged_attention.tiles import LEAST_TILE
from facet.kernels.shared_memory import shared_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """Some rows are attended to one by one, those of longer runs together."""

    decodes: tuple[DecodePlan, ...]  # one after the other
    prefills: tuple[PrefillPlan, ...]
    is_invariant: bool = False  # a row's bits do not depend on other rows

    def run(
        self,
        queries: Tensor,
        cache: LayerCache,
        *,
        scale: float,
        key_recipe: KeyRecipe | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """See `AttentionPlan`."""
        assert out is None or out.is_contiguous(), "rows of the result lie one after another"
        output = torch.empty_like(queries) if out is None else out
        queries = queries.contiguous()
        for decode in self.decodes:
            if decodes_in_ring(queries, cache, decode, key_recipe, is_invariant=self.is_invariant):
                from facet.kernels.paged_attention.decode.hopper.ring import attend_in_ring  # imports Gluon

                ring = choose_ring_tuning(queries, cache, decode, is_invariant=self.is_invariant)
                attend_in_ring(queries, output, cache, decode, scale, key_recipe, ring)
                continue
            reader = choose_reader(queries, cache, key_recipe)
            choose_tuning = choose_fixed_tuning if self.is_invariant else choose_decode_tuning
            tuning = choose_tuning(reader, queries, cache, decode)
            if gains_by_groups(reader, queries, cache, decode, tuning):
                attend_groups(queries, output, cache, decode, scale, tuning)
            elif tuning.num_programs is not None and can_take_turns(reader, cache):
                attend_in_turn(queries, output, cache, decode, scale, tuning)
            else:
                attend_rows(queries, output, cache, decode, scale, key_recipe, reader, tuning)
        for prefill in self.prefills:
            kernel = choose_prefill_kernel(queries, cache, key_recipe, prefill.rows)
            attend_runs(queries, output, cache, prefill, scale, key_recipe, kernel)
        return output


def plan_on_gpu(
    rows: AttentionRows, block_table: Tensor, heads: HeadShape, *, window: int | None, tokens_per_block: int
) -> GpuPlan:
    """Long runs are prefilled, the rows of all others decoded."""
    paged = PagedRows.of(rows, block_table, heads, window=window, tokens_per_block=tokens_per_block)
    lens, contexts = np.array(rows.host_query_lens, np.int64), np.array(rows.host_context_lens, np.int64)
    starts = np.cumsum(lens) - lens
    is_short = lens < LEAST_RUN
    # A decoded row sees up to its own position. So does every single row: media that attend both ways are not cut.
    if paged.sees_ahead or lens[is_short & (lens > 1)].sum() > MOST_ROWS_OF_SHORT_RUNS:
        is_short = lens == 1
    decoded = np.flatnonzero(np.repeat(is_short, lens)).astype(np.int32)
    runs = [
        Run(first_row=int(starts[index]), num_rows=int(lens[index]), context_len=int(contexts[index]))
        for index in np.flatnonzero(~is_short)
    ]
    decodes: tuple[DecodePlan, ...] = ()
    if len(decoded):
        longest, has_prompts = int(contexts[is_short].max()), bool((lens > 1).any())
        decodes = (
            plan_decode(
                paged,
                decoded,
                longest_context=longest,
                has_prompts=has_prompts,
                may_share_seats=rows.may_share_seats and not has_prompts,
            ),
        )
    return GpuPlan(decodes=decodes, prefills=(plan_runs(paged, runs),) if runs else ())


def plan_invariant_on_gpu(
    rows: AttentionRows,
    block_table: Tensor,
    heads: HeadShape,
    *,
    window: int | None,
    tokens_per_block: int,
    partials_limit: int = PARTIALS_LIMIT,
) -> GpuPlan:
    """Tokens of prompts are prefilled, all others decoded, however many there are in the step.

    So a token has one kernel, whenever it is computed and whoever else is; README.md says why its bits are then always
    the same. Media that attend both ways have a kernel of their own, and are runs of their own.
    """
    paged = PagedRows.of(rows, block_table, heads, window=window, tokens_per_block=tokens_per_block)
    lens, contexts, prompt_lens = (
        np.array(counts, np.int64) for counts in (rows.host_query_lens, rows.host_context_lens, rows.host_prompt_lens)
    )
    starts = np.cumsum(lens) - lens
    ends = contexts - lens + prompt_lens
    runs = [
        Run(first_row=int(starts[index]), num_rows=int(prompt_lens[index]), context_len=int(ends[index]))
        for index in np.flatnonzero(prompt_lens)
    ]
    of_text, of_media = split_runs(runs, rows.host_media_rows)
    prefills = []
    if of_text:
        prefills.append(plan_runs(replace(paged, last_visible=paged.positions), of_text))
    if of_media:
        prefills.append(plan_runs(paged, of_media))
    is_decoded = np.ones(int(lens.sum()), np.bool_)
    for run in runs:
        is_decoded[run.first_row : run.first_row + run.num_rows] = False
    decoded = np.flatnonzero(is_decoded).astype(np.int32)
    longest = int(contexts[prompt_lens < lens].max(initial=0))
    most_rows = rows_of_partials(heads, partials_limit, has_window=window is not None)
    has_prompts = bool((lens > 1).any() or runs or len(decoded) > most_rows)
    return GpuPlan(
        decodes=tuple(
            plan_decode(
                paged,
                decoded[first : first + most_rows],
                longest_context=longest,
                has_prompts=has_prompts,
                may_share_seats=rows.may_share_seats and not has_prompts,
                has_drafts=rows.has_drafts,
            )
            for first in range(0, len(decoded), most_rows)
        ),
        prefills=tuple(prefills),
        is_invariant=True,
    )


def split_runs(runs: Sequence[Run], media_rows: Sequence[range]) -> tuple[list[Run], list[Run]]:
    """The parts of runs that lie outside these rows, and those inside. No part of a run is longer than it can be."""
    outside, inside = [], []
    for run in runs:
        first, end = run.first_row, run.first_row + run.num_rows

        def part(start: int, stop: int, run: Run = run, end: int = end) -> Run:
            return Run(first_row=start, num_rows=stop - start, context_len=run.context_len - (end - stop))

        for media in media_rows:
            start, stop = max(first, media.start), min(end, media.stop)
            if start < stop:
                if first < start:
                    outside.append(part(first, start))
                inside.append(part(start, stop))
                first = stop
        if first < end:
            outside.append(part(first, end))
    return outside, inside


def choose_reader(queries: Tensor, cache: LayerCache, key_recipe: KeyRecipe | None) -> Reader:
    """What reads a layer's cache while decoding."""
    head_dim, num_pairs = queries.shape[2], 0 if key_recipe is None else key_recipe.cos_sin.shape[2]
    if not cache.is_quantized:
        return SHARED if cache.is_shared and _a_quarter_rotates(head_dim, num_pairs) else SEPARATE
    if queries.element_size() == 2 and head_dim >= 2 * LEAST_TILE:
        if not cache.is_shared:
            return SEPARATE_8BIT
        if num_pairs >= 2 * LEAST_TILE and num_pairs & (num_pairs - 1) == 0:
            return SHARED_8BIT
    return SEPARATE  # slower, and reads any cache


def choose_prefill_kernel(
    queries: Tensor, cache: LayerCache, key_recipe: KeyRecipe | None, rows: PagedRows
) -> PrefillKernel:
    """What attends over a layer's unpacked keys and values."""
    head_dim, num_pairs = queries.shape[2], 0 if key_recipe is None else key_recipe.cos_sin.shape[2]
    if rows.sees_ahead:  # only one kernel lets rows do so; pictures are few tokens of all that is computed
        return choose_triton_kernel(head_dim, queries.element_size(), queries.device, is_shared=False)
    is_shared = cache.is_shared and not rows.window and _a_quarter_rotates(head_dim, num_pairs)
    on_hopper = choose_hopper_kernel(queries, rows, is_shared=is_shared)
    return on_hopper or choose_triton_kernel(head_dim, queries.element_size(), queries.device, is_shared=is_shared)


def choose_hopper_kernel(queries: Tensor, rows: PagedRows, *, is_shared: bool) -> PrefillKernel | None:
    """The kernel for a Hopper GPU; None where the card is another, or none of those kernels takes such layers."""
    heads = rows.heads
    group = heads.num_heads // heads.num_kv_heads
    if queries.dtype != torch.bfloat16 or ROWS_PER_WARPGROUP % group or not runs_on_hopper(queries.device):
        return None
    # Imported here: elsewhere Gluon need not be there.
    from facet.kernels.paged_attention.prefill.hopper.separate_256 import Separate256Kernel
    from facet.kernels.paged_attention.prefill.hopper.separate_512 import Separate512Kernel
    from facet.kernels.paged_attention.prefill.hopper.shared_512 import Shared512Kernel

    if heads.head_dim == 512 and not rows.window:
        return Shared512Kernel() if is_shared else Separate512Kernel()
    if heads.head_dim == 256 and not is_shared:
        return Separate256Kernel()
    return None


def choose_triton_kernel(
    head_dim: int, element_size: int, device: torch.device, *, is_shared: bool
) -> SharedKernel | SeparateKernel:
    """The kernels that run on any GPU."""
    if is_shared:
        return SharedKernel(tuning=shared_tuning(element_size, shared_bytes(device)))
    return SeparateKernel(tuning=separate_tuning(head_dim, element_size, shared_bytes(device)))


def _a_quarter_rotates(head_dim: int, num_pairs: int) -> bool:
    """What Gemma's shared vectors are like."""
    return head_dim == 8 * num_pairs and num_pairs >= LEAST_TILE
