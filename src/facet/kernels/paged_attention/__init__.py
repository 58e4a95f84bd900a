"""Attention over keys and values that lie in pages: plan once per step, run once per layer.

The Triton kernels serve tensors on a GPU, the reference everything else. Where rows must not depend on their company
bit for bit, a plan is made for that.
"""

from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention import reference
from facet.kernels.paged_attention.cache import HeadShape, KeyRecipe, LayerCache
from facet.kernels.paged_attention.invariant import plan as invariant_plan
from facet.kernels.paged_attention.invariant import reference as invariant_reference
from facet.kernels.paged_attention.plans import AttentionPlan, InvariantPlan, InvariantTritonPlan, ReferencePlan
from facet.kernels.paged_attention.reference import write_keys_and_values

__all__ = [
    "AttentionPlan",
    "HeadShape",
    "KeyRecipe",
    "LayerCache",
    "paged_attention",
    "plan_attention",
    "row_places",
    "write_keys_and_values",
]


def plan_attention(
    rows: AttentionRows,
    block_table: Tensor,
    heads: HeadShape,
    *,
    window: int | None,
    tokens_per_block: int,
    is_invariant: bool = False,
) -> AttentionPlan:
    """What all layers of a kind share in a step. A query at position p sees p - window + 1 to p, or 0 to p."""
    if is_invariant and block_table.is_cuda:
        return invariant_plan.plan_attention(rows, block_table, heads, window=window, tokens_per_block=tokens_per_block)
    if is_invariant:
        return invariant_reference.plan_attention(rows, block_table, window=window, tokens_per_block=tokens_per_block)
    if block_table.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.paged_attention import gpu

        return gpu.plan_attention(rows, block_table, heads, window=window, tokens_per_block=tokens_per_block)
    return reference.plan_attention(rows, block_table, heads, window=window, tokens_per_block=tokens_per_block)


def row_places(rows: AttentionRows, block_table: Tensor, *, tokens_per_block: int) -> tuple[Tensor, Tensor]:
    """The block that each row's keys and values go to, and the slot inside it: [rows] int64 each."""
    if block_table.is_cuda:
        from facet.kernels.paged_attention import places

        return places.row_places(rows, block_table, tokens_per_block=tokens_per_block)
    return reference.row_places(rows, block_table, tokens_per_block=tokens_per_block)


def paged_attention(
    queries: Tensor,
    cache: LayerCache,
    plan: AttentionPlan,
    *,
    scale: float,
    key_recipe: KeyRecipe | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of every row over its own sequence. queries: [rows, heads, head_dim]; the result likewise, in `out` if
    given."""
    if isinstance(plan, ReferencePlan):
        return reference.paged_attention(queries, cache, plan, scale=scale, key_recipe=key_recipe, out=out)
    if isinstance(plan, InvariantPlan):
        return invariant_reference.paged_attention(queries, cache, plan, scale=scale, key_recipe=key_recipe, out=out)
    if isinstance(plan, InvariantTritonPlan):
        from facet.kernels.paged_attention.invariant import kernel

        return kernel.paged_attention(queries, cache, plan, scale=scale, key_recipe=key_recipe, out=out)
    from facet.kernels.paged_attention import gpu

    return gpu.paged_attention(queries, cache, plan, scale=scale, key_recipe=key_recipe, out=out)
