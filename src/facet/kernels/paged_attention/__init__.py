"""Attention over keys and values that lie in pages: plan once per step, run once per layer."""

from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.reference import (
    AttentionPlan,
    paged_attention,
    plan_attention,
    write_keys_and_values,
)

__all__ = [
    "AttentionPlan",
    "KeyRecipe",
    "LayerCache",
    "paged_attention",
    "plan_attention",
    "write_keys_and_values",
]
