"""Makes the picture of the KV cache from the pool and the tables, when the page asks for it."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from facet.arena_picture import ArenaPicture, PagesOfAKind
from facet.kv_cache.block_pool import BlockPool
from facet.kv_cache.block_tables import BlockTables
from facet.kv_layout import KVLayout
from facet.step import SCRATCH_BLOCK

CACHED = "cached"


def draw(layout: KVLayout, pool: BlockPool, tables: BlockTables, *, max_cells: int) -> ArenaPicture:
    """A picture of the cache. Its cost grows with the pages in use, so that of a large, empty cache is cheap."""
    first_page = SCRATCH_BLOCK + 1
    num_pages = pool.num_blocks - first_page
    pages_per_cell = -(-num_pages // max_cells)
    starts = np.arange(0, num_pages, pages_per_cell)
    kinds = (
        PagesOfAKind(
            kind=kind,
            num_pages=int(np.count_nonzero(is_of_kind[first_page:])),
            # A number per page, added up per cell.
            cells=tuple(np.add.reduceat(is_of_kind[first_page:], starts, dtype=np.int64).tolist()),
        )
        for kind, is_of_kind in _pages_by_kind(layout, pool, tables)
    )
    return ArenaPicture(
        num_pages=num_pages, page_bytes=layout.total_page_bytes, pages_per_cell=pages_per_cell, kinds=tuple(kinds)
    )


def _pages_by_kind(layout: KVLayout, pool: BlockPool, tables: BlockTables) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    for index, group in enumerate(layout.groups):
        is_of_kind = np.zeros(pool.num_blocks, np.bool_)
        for seat in np.flatnonzero(tables.end[index] > tables.first[index]).tolist():
            is_of_kind[tables.held(index, seat)] = True
        yield group.kind, is_of_kind
    yield CACHED, (pool.checkpoint_refs > 0) & (pool.table_refs == 0)
