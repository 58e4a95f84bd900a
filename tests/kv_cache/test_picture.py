"""The picture of the arena shows what the books say, in few cells."""

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from facet.arena_picture import ArenaPicture
from facet.kv_cache.block_pool import BlockPool
from facet.kv_cache.block_tables import BlockTables
from facet.kv_cache.picture import draw
from tests.kv_cache.layouts import PAGE_BYTES, make_layout

LAYOUT = make_layout((8, 4), (None, 8))
NUM_ROWS = 4
CHECKPOINT = 7


def make_tables() -> BlockTables:
    return BlockTables(LAYOUT, max_num_seqs=NUM_ROWS, max_model_len=4096)


def hand_out(pool: BlockPool, tables: BlockTables, group: int, seat: int, count: int) -> None:
    end = int(tables.end[group][seat])
    tables.block_ids[group][seat, end : end + count] = pool.take(count)
    tables.end[group][seat] = end + count


def cells_of(picture: ArenaPicture) -> dict[str, list[int]]:
    return {pages.kind: list(pages.cells) for pages in picture.kinds}


def test_every_page_has_its_cell_where_there_are_few() -> None:
    pool, tables = BlockPool(9), make_tables()  # pages 1 to 8; taken from the lowest up
    hand_out(pool, tables, 0, 2, 3)
    hand_out(pool, tables, 1, 0, 2)
    hand_out(pool, tables, 0, 1, 1)
    # Seat 2 leaves; the prefix cache keeps the last of its pages.
    held = tables.held(0, 2).copy()
    pool.hold(held[2:], CHECKPOINT)
    pool.release(held, fence=0)
    tables.clear(2)
    picture = draw(LAYOUT, pool, tables, max_cells=512)
    where = {kind: {1 + at for at, count in enumerate(cells) if count} for kind, cells in cells_of(picture).items()}
    assert where == {
        "sliding": {int(tables.held(0, 1)[0])},
        "global": set(tables.held(1, 0).tolist()),
        "cached": {int(held[2])},
    }
    assert (picture.num_pages, picture.page_bytes, picture.pages_per_cell) == (8, PAGE_BYTES, 1)


def test_a_page_that_running_requests_share_is_one_page() -> None:
    pool, tables = BlockPool(9), make_tables()
    hand_out(pool, tables, 1, 0, 2)
    shared = tables.held(1, 0).copy()
    pool.hold(shared, CHECKPOINT)
    pool.share(shared)
    tables.block_ids[1][3, :2] = shared
    tables.end[1][3] = 2
    numbers = {pages.kind: pages.num_pages for pages in draw(LAYOUT, pool, tables, max_cells=512).kinds}
    assert numbers == {"sliding": 0, "global": 2, "cached": 0}


@given(
    num_pages=st.integers(1, 300),
    max_cells=st.integers(1, 64),
    taken=st.lists(st.tuples(st.integers(0, 1), st.integers(0, NUM_ROWS - 1), st.integers(1, 40)), max_size=12),
    num_kept=st.integers(0, 30),
)
def test_cells_add_up(num_pages: int, max_cells: int, taken: list[tuple[int, int, int]], num_kept: int) -> None:
    pool, tables = BlockPool(num_pages + 1), make_tables()
    for group, seat, count in taken:
        hand_out(pool, tables, group, seat, min(count, pool.num_ready))
    held = tables.held(1, 0)[:num_kept].copy()
    if len(held):
        pool.hold(held, CHECKPOINT)
        pool.release(tables.held_in_all_groups(0), fence=0)
        tables.clear(0)
    picture = draw(LAYOUT, pool, tables, max_cells=max_cells)
    cells = np.array([pages.cells for pages in picture.kinds])
    assert cells.shape == (3, -(-num_pages // picture.pages_per_cell))
    assert cells.shape[1] <= max_cells
    assert cells.sum(0).max() <= picture.pages_per_cell
    assert cells.sum(1).tolist() == [pages.num_pages for pages in picture.kinds]
    sliding, full, cached = cells.sum(1).tolist()
    assert (sliding + full, cached) == (pool.num_in_tables, pool.num_cached)


def test_a_large_arena_makes_a_small_message() -> None:
    pool, tables = BlockPool(200_000), BlockTables(LAYOUT, max_num_seqs=64, max_model_len=65_536)
    for seat in range(64):
        hand_out(pool, tables, 1, seat, 2000)
    picture = draw(LAYOUT, pool, tables, max_cells=512)
    assert len(msgspec.msgpack.encode(picture)) < 4_000
    assert len(msgspec.json.encode(picture)) < 6_000
