"""How a step's rows are cut for attention that does not depend on company: tiles of rows, shares of keys, and passes.

Knows nothing of kernels; `kernel.py` says what is done with these.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention.cache import HeadShape
from facet.kernels.paged_attention.plans import InvariantTritonPlan, TilePass
from facet.transfer import arrays_on_device

# Fewer keys make a long context quicker for a single row; more leave less to put together behind a prompt.
KEYS_PER_SHARE = 1024
# What shares leave behind takes memory by row: more rows than fit here are attended to in several passes.
PARTIALS_LIMIT = 256 * 2**20
_PARTIAL_BYTES = 4
# Rows of a product: tokens times the query heads that share a key head. More would serve prompts better; a single row
# fills one token's places, whatever their number.
ROWS_PER_PRODUCT = 64


def plan_attention(
    rows: AttentionRows,
    block_table: Tensor,
    heads: HeadShape,
    *,
    window: int | None,
    tokens_per_block: int,
    keys_per_share: int = KEYS_PER_SHARE,
    partials_limit: int = PARTIALS_LIMIT,
) -> InvariantTritonPlan:
    """Cut the rows into tiles. A query at position p sees positions p - window + 1 to p, or 0 to p."""
    tokens_per_tile = rows_of_product(heads, ROWS_PER_PRODUCT) * heads.num_kv_heads // heads.num_heads
    firsts, lens = _cut(rows.host_query_lens, tokens_per_tile)
    if lens.max(initial=1) == 1:
        # Without a copy from the host, which a captured graph could not repeat.
        tiles = torch.ones(len(firsts), 2, dtype=torch.int32, device=block_table.device)
        tiles[:, 0] = torch.arange(len(firsts), device=block_table.device)
    else:
        (tiles,) = arrays_on_device((np.stack((firsts, lens), axis=1).astype(np.int32),), block_table.device)
    num_shares = 1 if window else max(1, -(-max(rows.host_context_lens, default=0) // keys_per_share))
    row_bytes = 0 if window else num_shares * heads.num_heads * heads.head_dim * _PARTIAL_BYTES
    return InvariantTritonPlan(
        heads=heads,
        positions=rows.positions,
        seats=rows.seats,
        block_table=block_table,
        window=window or 0,
        tokens_per_block=tokens_per_block,
        tiles=tiles,
        tokens_per_tile=tokens_per_tile,
        passes=_passes(firsts + lens, partials_limit // row_bytes if row_bytes else None),
        num_shares=num_shares,
        keys_per_share=keys_per_share,
    )


def _cut(query_lens: tuple[int, ...], tokens_per_tile: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first row and the number of rows of every tile, in the order of rows. No tile has rows of two sequences."""
    lens = np.array(query_lens, np.int64)
    ends = np.cumsum(lens)
    counts = -(-lens // tokens_per_tile)
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = np.repeat(ends - lens, counts) + number * tokens_per_tile
    return firsts, np.minimum(np.repeat(ends, counts) - firsts, tokens_per_tile)


def _passes(ends: NDArray[np.int64], most_rows: int | None) -> tuple[TilePass, ...]:
    """Tiles that end before these rows, as many to a pass as have no more than so many rows, and at least one."""
    passes: list[TilePass] = []
    first_tile = first_row = 0
    while first_tile < len(ends):
        end_tile = len(ends)
        if most_rows is not None:
            end_tile = max(first_tile + 1, int(np.searchsorted(ends, first_row + most_rows, side="right")))
        end_row = int(ends[end_tile - 1])
        passes.append(TilePass(tiles=range(first_tile, end_tile), rows=range(first_row, end_row)))
        first_tile, first_row = end_tile, end_row
    return tuple(passes)


def rows_of_product(heads: HeadShape, at_least: int) -> int:
    """A power of two: places for the query heads of at least one token."""
    return max(at_least, 1 << (heads.num_heads // heads.num_kv_heads - 1).bit_length())
