"""Runs the prefill of a step, pass by pass: unpacks keys and values, then attends to them."""

from typing import Protocol

from torch import Tensor

from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.prefill.plan import PrefillPlan, RunPass
from facet.kernels.paged_attention.prefill.unpack import Scratch, make_scratch, unpack


class PrefillKernel(Protocol):
    """Attends over unpacked keys and values."""

    @property
    def is_shared(self) -> bool:
        """Whether it reads scratch of shared vectors, or of separate keys and values."""

    def attend(
        self,
        queries: Tensor,
        output: Tensor,
        scratch: Scratch,
        plan: PrefillPlan,
        run_pass: RunPass,
        heads: range,
        scale: float,
        key_recipe: KeyRecipe | None,
    ) -> object:
        """Write what query heads find that share these key heads, which are in scratch.

        Returns the compiled kernel, for those who ask what it takes.
        """


def attend_runs(
    queries: Tensor,
    output: Tensor,
    cache: LayerCache,
    plan: PrefillPlan,
    scale: float,
    key_recipe: KeyRecipe | None,
    kernel: PrefillKernel,
) -> None:
    """Write the rows of `output` that belong to runs, as many key heads at a time as scratch holds."""
    num_kv_heads = plan.rows.heads.num_kv_heads
    for run_pass in plan.passes:
        scratch = make_scratch(cache, run_pass, queries.dtype, key_recipe, is_shared=kernel.is_shared)
        for first in range(0, num_kv_heads, run_pass.heads_per_slice):
            heads = range(first, min(first + run_pass.heads_per_slice, num_kv_heads))
            unpack(scratch, cache, plan.rows, run_pass, heads, key_recipe)
            kernel.attend(queries, output, scratch, plan, run_pass, heads, scale, key_recipe)
