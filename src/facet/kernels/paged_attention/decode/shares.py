"""Divides a row's keys into shares, and combines the results of the shares.

A share leaves its mean of values, weighted by its own softmax, and its level: the logarithm of the sum that softmax
divided by. The row's result is the mean of the shares' results, weighted by exp(level). Shares are added in their
order, whichever program does it, so a result does not depend on which program finished last.
"""

import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.decode.tuning import DecodeTuning

# What a program of the second kernel puts together at a time: as much as it holds, whatever the number of shares.
_SHARES_MERGED, _DIMS_MERGED = 64, 64


@triton.jit
def visible_keys(positions, row, window, HAS_WINDOW: tl.constexpr):
    """The keys that a row sees: [first, end)."""
    end = tl.load(positions + row) + 1
    first = end * 0
    if HAS_WINDOW:
        first = tl.maximum(end - window, 0)
    return first, end


@triton.jit
def keys_per_share(num_keys, num_splits, least_keys, BLOCK_N: tl.constexpr):
    """Equal shares of whole tiles, as many as leave each enough to do."""
    num_shares = tl.maximum(tl.minimum(num_splits, num_keys // least_keys), 1)
    return tl.cdiv(tl.cdiv(num_keys, num_shares), BLOCK_N) * BLOCK_N


@triton.jit
def merge_group(
    partial_results,
    partial_levels,
    output,
    entry,
    row,
    kv_head,
    num_heads,
    num_splits,
    num_shares,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MOST_SHARES: tl.constexpr,
):
    """Put the shares of one row and key head together, all dimensions of all its query heads.

    A thread has the same dimensions of every share, so that threads exchange nothing. The loops are unrolled for all
    loads to be on their way at once. They pass by the first-level cache, which is not told of others' stores.
    """
    members = tl.arange(0, GROUP_PAD)[:, None]
    dims = tl.arange(0, HEAD_DIM)[None, :]
    is_member = members < GROUP
    heads = kv_head * GROUP + members
    places = (entry.to(tl.int64) * num_heads + heads) * num_splits
    num_live = tl.where(is_member, num_shares, 0)
    greatest = tl.full([GROUP_PAD, 1], float("-inf"), tl.float32)
    for share in tl.static_range(MOST_SHARES):
        level = tl.load(
            partial_levels + places + share, mask=num_live > share, other=float("-inf"), cache_modifier=".cg"
        )
        greatest = tl.maximum(greatest, level)
    greatest = tl.where(is_member, greatest, 0.0)
    merged = tl.zeros([GROUP_PAD, HEAD_DIM], tl.float32)
    weight_sum = tl.zeros([GROUP_PAD, 1], tl.float32)
    for share in tl.static_range(MOST_SHARES):
        is_live = num_live > share
        level = tl.load(partial_levels + places + share, mask=is_live, other=float("-inf"), cache_modifier=".cg")
        pointers = partial_results + (places + share) * HEAD_DIM + dims
        result = tl.load(pointers, mask=is_live, other=0.0, cache_modifier=".cg")
        weight = tl.exp(level - greatest)
        weight_sum += weight
        merged += weight * result
    merged = merged / tl.where(is_member, weight_sum, 1.0)
    pointers = output + (row.to(tl.int64) * num_heads + heads) * HEAD_DIM + dims
    tl.store(pointers, merged.to(output.dtype.element_ty), mask=is_member)


@triton.jit(do_not_specialize=["num_splits", "least_keys"], do_not_specialize_on_alignment=["positions", "row_map"])
def merge_shares_kernel(
    partial_results,
    partial_levels,
    positions,
    row_map,
    output,
    window,
    num_splits,
    least_keys,
    num_heads,
    HAS_MAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SHARES: tl.constexpr,
    DIMS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Put the shares of one row and head together, some dimensions of it: for more shares than one program can take."""
    entry, head = tl.program_id(0), tl.program_id(1)
    dims = tl.program_id(2) * DIMS + tl.arange(0, DIMS)
    row = tl.load(row_map + entry) if HAS_MAP else entry
    first, end = visible_keys(positions, row, window, HAS_WINDOW)
    start_after_previous(IS_DEPENDENT)
    num_shares = tl.cdiv(end - first, keys_per_share(end - first, num_splits, least_keys, BLOCK_N))
    if num_shares == 1:
        return  # it is in the output already
    place = (entry.to(tl.int64) * num_heads + head) * num_splits
    merged = tl.zeros([DIMS], tl.float32)
    greatest = tl.zeros([1], tl.float32) + float("-inf")
    weight_sum = tl.zeros([1], tl.float32)
    for start in range(0, num_shares, SHARES):
        shares = start + tl.arange(0, SHARES)
        is_share = shares < num_shares
        levels = tl.load(partial_levels + place + shares, mask=is_share, other=float("-inf"))
        pointers = partial_results + (place + shares)[:, None] * HEAD_DIM + dims[None, :]
        results = tl.load(pointers, mask=is_share[:, None], other=0.0)
        new_greatest = tl.maximum(greatest, tl.max(levels, axis=0))
        shrink = tl.exp(greatest - new_greatest)
        weights = tl.exp(levels - new_greatest)
        weight_sum = weight_sum * shrink + tl.sum(weights, axis=0)
        merged = merged * shrink + tl.sum(results * weights[:, None], axis=0)
        greatest = new_greatest
    result = (merged / weight_sum).to(output.dtype.element_ty)
    tl.store(output + (row.to(tl.int64) * num_heads + head) * HEAD_DIM + dims, result)


def merge_rows(output: Tensor, results: Tensor, levels: Tensor, plan: DecodePlan, tuning: DecodeTuning) -> None:
    """Put together what shares have left behind, in a kernel of its own."""
    rows, (num_heads, head_dim) = plan.rows, output.shape[1:]
    dims_per_program = min(head_dim, _DIMS_MERGED)
    merge_shares_kernel[(plan.num_rows, num_heads, head_dim // dims_per_program)](
        results,
        levels,
        rows.positions,
        plan.map_or_any,
        output,
        rows.window,
        tuning.num_splits,
        tuning.least_keys,
        num_heads,
        HAS_MAP=plan.row_map is not None,
        HAS_WINDOW=rows.window > 0,
        BLOCK_N=tuning.keys_per_tile,
        HEAD_DIM=head_dim,
        SHARES=_SHARES_MERGED,
        DIMS=dims_per_program,
        num_warps=4,
        **launch_options(output.device),
    )
