"""Launches the kernels that decode rows through a ring of tiles."""

import torch
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.decode.hopper.separate_kernel import separate_kernel
from facet.kernels.paged_attention.decode.hopper.shared_kernel import shared_kernel
from facet.kernels.paged_attention.decode.hopper.tuning import RingTuning
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.plan import HeadsToPrepare

# Bytes of shares that the last program loads together: what registers hold.
_BYTES_AT_ONCE = 9 * 4096


def attend_in_ring(
    queries: Tensor,
    output: Tensor,
    cache: LayerCache,
    plan: DecodePlan,
    scale: float,
    key_recipe: KeyRecipe | None,
    tuning: RingTuning,
    heads: HeadsToPrepare | None = None,
) -> None:
    """Write the rows of `output` that the plan names. `heads`: they are prepared here, and give `queries` its shape."""
    rows = plan.rows
    (num_heads, head_dim), num_kv_heads = queries.shape[1:], cache.keys.shape[2]
    group = num_heads // num_kv_heads
    totals, levels = output, output
    if tuning.num_programs > 1:
        per_share = (plan.num_rows, num_heads, tuning.num_shares)
        totals = torch.empty(*per_share, head_dim, dtype=torch.float32, device=queries.device)
        levels = torch.empty(*per_share, 2, dtype=torch.float32, device=queries.device)
    where = (rows.block_table, rows.positions, rows.seats, plan.map_or_any, output)
    left_behind = (totals, levels, plan.arrivals)
    strides = (rows.block_table.stride(0), cache.keys.stride(0), num_heads)
    options = {
        "HAS_MAP": plan.row_map is not None,
        "SHARE": tuning.share_keys,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "TOKEN_STRIDE": cache.keys.stride(1),
        "TOKENS_PER_BLOCK": rows.tokens_per_block,
        "SLOTS": tuning.num_slots,
        "AT_ONCE": max(2, min(9, _BYTES_AT_ONCE // (4 * group * head_dim))),
        "num_warps": 4,
        **launch_options(queries.device),
    }
    grid = (plan.num_rows, num_kv_heads, tuning.num_programs)
    if cache.is_shared:
        assert key_recipe is not None, "shared vectors need a recipe for their keys"
        weight, cos_sin = key_recipe.weight, key_recipe.cos_sin
        shared_kernel[grid](
            queries, cache.keys, weight, cos_sin, *where, *left_behind, scale, tuning.least_keys, tuning.num_shares,
            *strides, PAIRS=cos_sin.shape[-1], **options,
        )  # fmt: skip
    else:
        assert cache.values is not None
        if heads is None:
            source = queries
            prepares: tuple[object, ...] = (None, None, None, 0.0, 0)
            num_pairs, norms_values = 0, False
        else:
            source, num_pairs, norms_values = heads.projected, heads.cos_sin.shape[-1], heads.values_are_normed
            prepares = (heads.query_weight, heads.key_weight, heads.cos_sin, heads.eps, source.stride(0))
        separate_kernel[grid](
            source, cache.keys, cache.values, *where, *prepares, *left_behind, scale, rows.window, tuning.least_keys,
            tuning.num_shares, *strides, PAIRS=num_pairs, NORMS_VALUES=norms_values, HAS_WINDOW=rows.window > 0,
            **options,
        )  # fmt: skip
