"""Invariant attention of a step on a GPU: plans its rows and runs a layer."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.dependent_launch import launch_options
from facet.kernels.paged_attention.cache import HeadShape, KeyRecipe, LayerCache
from facet.kernels.paged_attention.invariant.kernel import invariant_kernel, merge_invariant_kernel
from facet.kernels.paged_attention.invariant.plan import (
    KEYS_PER_SHARE,
    PARTIALS_LIMIT,
    ROWS_PER_PRODUCT,
    TilePass,
    cut_rows,
    make_passes,
)
from facet.kernels.paged_attention.plan import PagedRows, rows_of_product
from facet.kernels.paged_attention.tiles import common_arguments
from facet.transfer import arrays_on_device

# Of float32, which is for checking models and not for serving them: small enough to fit anywhere.
_ROWS_OF_FLOAT32 = 16


class _ProductShape(NamedTuple):
    """Of the products of one program."""

    num_rows: int
    num_keys: int  # at a time
    num_warps: int
    num_stages: int


def _choose_shape(heads: HeadShape, element_size: int) -> _ProductShape:
    """Not a function of the rows of a step."""
    if element_size > 2:
        return _ProductShape(rows_of_product(heads, _ROWS_OF_FLOAT32), 16, num_warps=4, num_stages=1)
    num_rows = rows_of_product(heads, ROWS_PER_PRODUCT)
    # As many keys, and as many tiles on their way, as leave the running sums in registers.
    if heads.head_dim > 256:
        # E4B global, 1, 8 and 32 rows of 700 keys, and a prompt of 2048: 76, 79, 88 and 322 us. In 2 stages: 85, 87, 95
        # and 342.
        return _ProductShape(num_rows, 32, num_warps=8, num_stages=3)
    return _ProductShape(num_rows, 32 if heads.head_dim > 128 else 64, num_warps=4, num_stages=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantPlan:
    """What all layers of a kind share in a step."""

    rows: PagedRows
    tiles: Tensor  # [tiles, 2] int32: first row, number of rows
    tokens_per_tile: int  # no tile has more rows than this
    passes: tuple[TilePass, ...]
    num_shares: int  # most that the keys of a row are cut into
    keys_per_share: int

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
        queries = queries.contiguous()
        output = torch.empty_like(queries) if out is None else out
        assert output.is_contiguous(), "rows lie one after another"
        rows, heads = self.rows, self.rows.heads
        strides, constants, weight, cos_sin = common_arguments(queries, cache, rows, key_recipe)
        shape = _choose_shape(heads, queries.element_size())
        num_heads, head_dim = queries.shape[1:]
        tokens_per_program = shape.num_rows * heads.num_kv_heads // num_heads
        programs_per_tile = triton.cdiv(self.tokens_per_tile, tokens_per_program)
        has_window = rows.window > 0
        assert self.keys_per_share % shape.num_keys == 0, "a share is whole tiles"
        most_rows = 0 if has_window else max((len(tile_pass.rows) for tile_pass in self.passes), default=0)
        per_share = (most_rows, num_heads, self.num_shares)
        partials = torch.empty(*per_share, head_dim, dtype=torch.float32, device=queries.device)
        levels = torch.empty(*per_share, 2, dtype=torch.float32, device=queries.device)
        for tile_pass in self.passes:
            invariant_kernel[(len(tile_pass.tiles) * programs_per_tile, heads.num_kv_heads, self.num_shares)](
                queries,
                cache.keys,
                cache.keys if cache.values is None else cache.values,
                rows.block_table,
                rows.positions,
                rows.last_visible,
                rows.seats,
                self.tiles,
                weight,
                cos_sin,
                output,
                output if has_window else partials,
                output if has_window else levels,
                output if cache.key_scales is None else cache.key_scales,  # read only where there are scales
                output if cache.value_scales is None else cache.value_scales,
                scale,
                rows.window,
                tile_pass.tiles.start,
                tile_pass.rows.start,
                self.num_shares,
                **strides,
                **constants,
                KEYS_PER_SHARE=self.keys_per_share,
                PROGRAMS_PER_TILE=programs_per_tile,
                TOKENS=tokens_per_program,
                BLOCK_M=shape.num_rows,
                BLOCK_N=shape.num_keys,
                num_warps=shape.num_warps,
                num_stages=shape.num_stages,
                **launch_options(queries.device),
            )
            if not has_window:
                merge_invariant_kernel[(len(tile_pass.rows), num_heads)](
                    partials,
                    levels,
                    rows.last_visible,
                    output,
                    tile_pass.rows.start,
                    self.num_shares,
                    HEAD_DIM=head_dim,
                    KEYS_PER_SHARE=self.keys_per_share,
                    num_warps=1,
                    **launch_options(queries.device),
                )
        return output


def plan_invariant_on_gpu(
    rows: AttentionRows,
    block_table: Tensor,
    heads: HeadShape,
    *,
    window: int | None,
    tokens_per_block: int,
    keys_per_share: int = KEYS_PER_SHARE,
    partials_limit: int = PARTIALS_LIMIT,
) -> InvariantPlan:
    """Cut the rows into tiles. A query at position p sees positions p - window + 1 to p, or 0 to p."""
    tokens_per_tile = rows_of_product(heads, ROWS_PER_PRODUCT) * heads.num_kv_heads // heads.num_heads
    firsts, lens = cut_rows(rows.host_query_lens, tokens_per_tile)
    if lens.max(initial=1) == 1:
        # Without a copy from the host, which a captured graph could not repeat.
        tiles = torch.ones(len(firsts), 2, dtype=torch.int32, device=block_table.device)
        tiles[:, 0] = torch.arange(len(firsts), device=block_table.device)
    else:
        (tiles,) = arrays_on_device((np.stack((firsts, lens), axis=1).astype(np.int32),), block_table.device)
    num_shares = 1 if window else max(1, -(-max(rows.host_context_lens, default=0) // keys_per_share))
    row_bytes = 0 if window else num_shares * heads.num_heads * heads.head_dim * torch.float32.itemsize
    return InvariantPlan(
        rows=PagedRows.of(rows, block_table, heads, window=window, tokens_per_block=tokens_per_block),
        tiles=tiles,
        tokens_per_tile=tokens_per_tile,
        passes=make_passes(firsts + lens, partials_limit // row_bytes if row_bytes else None),
        num_shares=num_shares,
        keys_per_share=keys_per_share,
    )
