"""Attention over keys and values in pages: planned once per step, run once per layer. README.md is the map.

The reference serves tensors on a CPU, Triton kernels those on a GPU.
"""

from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention import reference
from facet.kernels.paged_attention.cache import HeadShape, KeyRecipe, LayerCache
from facet.kernels.paged_attention.invariant_reference import plan_invariant_reference
from facet.kernels.paged_attention.plan import AttentionPlan
from facet.kernels.paged_attention.reference import write_keys_and_values

__all__ = [
    "AttentionPlan",
    "HeadShape",
    "KeyRecipe",
    "LayerCache",
    "plan_attention",
    "plan_invariant_attention",
    "row_places",
    "write_keys_and_values",
]


def plan_attention(
    rows: AttentionRows, block_table: Tensor, heads: HeadShape, *, window: int | None, tokens_per_block: int
) -> AttentionPlan:
    """What all layers of a kind share in a step. A query at position p sees p - window + 1 to p, or 0 to p."""
    if not block_table.is_cuda:
        return reference.plan_reference(rows, block_table, heads, window=window, tokens_per_block=tokens_per_block)
    # Imported here and below: machines without a GPU need no Triton.
    from facet.kernels.paged_attention.gpu import plan_on_gpu

    return plan_on_gpu(rows, block_table, heads, window=window, tokens_per_block=tokens_per_block)


def plan_invariant_attention(
    rows: AttentionRows, block_table: Tensor, heads: HeadShape, *, window: int | None, tokens_per_block: int
) -> AttentionPlan:
    """Like `plan_attention`, where a row's bits must not depend on the other rows of the step."""
    if not block_table.is_cuda:
        return plan_invariant_reference(rows, block_table, heads, window=window, tokens_per_block=tokens_per_block)
    from facet.kernels.paged_attention.gpu import plan_invariant_on_gpu

    return plan_invariant_on_gpu(rows, block_table, heads, window=window, tokens_per_block=tokens_per_block)


def row_places(rows: AttentionRows, block_table: Tensor, *, tokens_per_block: int) -> tuple[Tensor, Tensor]:
    """The block that each row's keys and values go to, and the slot inside it: [rows] int64 each."""
    if not block_table.is_cuda:
        return reference.row_places(rows, block_table, tokens_per_block=tokens_per_block)
    from facet.kernels.paged_attention import places

    return places.row_places(rows, block_table, tokens_per_block=tokens_per_block)
