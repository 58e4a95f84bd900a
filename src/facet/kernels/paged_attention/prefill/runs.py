"""Attention of runs of rows of one sequence, which is what prefill looks like: keys are unpacked, then attended to."""

from torch import Tensor

from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.plans import TritonPlan
from facet.kernels.paged_attention.prefill.plan import RunPass
from facet.kernels.paged_attention.prefill.separate import DenseShape, attend_dense, dense_shape
from facet.kernels.paged_attention.prefill.shared import attend_derived
from facet.kernels.paged_attention.prefill.unpack import Scratch, make_scratch, unpack


def attend_runs(
    queries: Tensor, output: Tensor, cache: LayerCache, plan: TritonPlan, scale: float, key_recipe: KeyRecipe | None
) -> None:
    """Write the rows of `output` that belong to runs."""
    assert plan.runs is not None, "a plan without runs has nothing to do here"
    for run_pass in plan.runs.passes:
        attend_pass(queries, output, cache, plan, run_pass, scale, key_recipe)


def attend_pass(
    queries: Tensor,
    output: Tensor,
    cache: LayerCache,
    plan: TritonPlan,
    run_pass: RunPass,
    scale: float,
    key_recipe: KeyRecipe | None,
    shape: DenseShape | None = None,
) -> None:
    """The runs of one pass, as many key heads at a time as scratch holds."""
    scratch = make_scratch(cache, run_pass, queries.dtype, key_recipe)
    shape = shape or dense_shape(queries.shape[2], queries.element_size(), is_shared=scratch.is_shared)
    num_kv_heads = plan.heads.num_kv_heads
    for first in range(0, num_kv_heads, run_pass.heads_per_slice):
        heads = range(first, min(first + run_pass.heads_per_slice, num_kv_heads))
        unpack(scratch, cache, plan, run_pass, heads, key_recipe)
        attend_unpacked(queries, output, scratch, plan, run_pass, heads, scale, key_recipe, shape)


def attend_unpacked(
    queries: Tensor,
    output: Tensor,
    scratch: Scratch,
    plan: TritonPlan,
    run_pass: RunPass,
    heads: range,
    scale: float,
    key_recipe: KeyRecipe | None,
    shape: DenseShape,
) -> object:
    """Attention over the key heads in scratch, by the kernel that its layout is for. Returns the compiled kernel."""
    if scratch.is_shared:
        assert key_recipe is not None, "vectors are shared only where keys are derived"
        return attend_derived(queries, output, scratch, plan, run_pass, heads, scale, key_recipe, shape)
    return attend_dense(queries, output, scratch, plan, run_pass, heads, scale, shape)
