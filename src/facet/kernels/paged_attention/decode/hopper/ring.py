"""Launches the kernels that decode rows through a ring of tiles."""

import torch
from torch import Tensor

from facet.kernels.dependent_launch import launch_options
from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.decode.hopper.separate_kernel import separate_kernel
from facet.kernels.paged_attention.decode.hopper.shared_kernel import shared_kernel
from facet.kernels.paged_attention.decode.hopper.tuning import RingTuning
from facet.kernels.paged_attention.decode.plan import DecodePlan

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
) -> None:
    """Write the rows of `output` that the plan names."""
    rows = plan.rows
    (num_heads, head_dim), num_kv_heads = queries.shape[1:], cache.keys.shape[2]
    group = num_heads // num_kv_heads
    totals, levels = output, output
    if tuning.num_programs > 1:
        per_share = (plan.num_rows, num_heads, tuning.num_shares)
        totals = torch.empty(*per_share, head_dim, dtype=torch.float32, device=queries.device)
        levels = torch.empty(*per_share, 2, dtype=torch.float32, device=queries.device)
    where = (rows.block_table, rows.positions, rows.seats, plan.map_or_any, output, totals, levels, plan.arrivals)
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
            queries, cache.keys, weight, cos_sin, *where, scale, tuning.least_keys, tuning.num_shares, *strides,
            PAIRS=cos_sin.shape[-1], **options,
        )  # fmt: skip
    else:
        assert cache.values is not None
        separate_kernel[grid](
            queries, cache.keys, cache.values, *where, scale, rows.window, tuning.least_keys, tuning.num_shares,
            *strides, HAS_WINDOW=rows.window > 0, **options,
        )  # fmt: skip
