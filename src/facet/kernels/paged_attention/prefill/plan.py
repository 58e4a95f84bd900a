"""Plans how runs of rows are prefilled in a step, over keys and values that are unpacked first.

A run's visible keys and values are copied out of their pages into scratch memory, [kv heads, keys, head_dim] each, and
then read by a kernel that knows nothing of pages. Runs are taken together in *passes*, so that scratch stays within a
limit; a run that alone is too much is taken a few key heads at a time, and at least one. Lists of tiles are made here,
once per step, and copied to the device in one transfer that the host does not wait for.

    scratch of one head      |run 0 ......|zeros|run 1 ...|zeros|       every run starts at a multiple of KEYS_PER_COPY

A run's first place is for a position that is such a multiple too. So keys are in the same tiles whatever the chunk that
asks for them, and zeros stand for those that a window has left behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from facet.kernels.paged_attention.cache import HeadShape
from facet.kernels.paged_attention.plan import PagedRows, rows_of_product
from facet.transfer import arrays_on_device

# The rows of shorter runs are attended to one by one, each split over its keys: as a run, few rows over a long context
# are a few programs that walk all of it. On an H200, 32 rows over 8192 tokens of E4B global took 535 us unpacked, and
# 32 decoded rows of that context 282 us. A kernel that read runs straight from their pages took 979 us, and lost to
# unpacking at every number of rows.
LEAST_RUN = 32
# More rows of shorter runs than this in one step are runs too: many of those are worked on side by side, while every
# decoded row reads its context anew.
MOST_ROWS_OF_SHORT_RUNS = 64
# Scratch is filled so many keys at a time. A tile of keys is at most as large and divides it.
KEYS_PER_COPY = 128
# Rows of a tile of queries, tokens times the query heads that share a key head: as many as the largest product of any
# kernel has. One whose products have fewer rows takes a tile in turns.
ROWS_PER_TILE = 128
SCRATCH_LIMIT = 512 * 2**20
# Scratch is planned for 16-bit elements. A float32 model, which no one serves on a GPU, takes twice the limit.
_ELEMENT_SIZE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Several rows of one sequence."""

    first_row: int
    num_rows: int
    context_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPass:
    """Runs whose keys and values are in scratch at the same time."""

    num_keys: int  # places for keys in scratch, of each head
    heads_per_slice: int  # key heads that are in scratch at the same time
    copies: Tensor  # [num_keys / KEYS_PER_COPY, 4] int32: a row of the run, first position, and places of live keys:
    # the first, and the one behind the last
    tiles: Tensor  # [tiles, 4] int32: first row, number of rows, the run's first place in scratch, that of row 0's key


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPlan:
    """What all layers of a kind share in a step."""

    rows: PagedRows
    passes: tuple[RunPass, ...]
    tokens_per_tile: int  # no tile has more rows than this


def plan_runs(
    rows: PagedRows,
    runs: Sequence[Run],
    *,
    scratch_limit: int = SCRATCH_LIMIT,
    rows_per_tile: int = ROWS_PER_TILE,
) -> PrefillPlan:
    """Sort runs into passes and cut them into tiles."""
    heads, window = rows.heads, rows.window or None
    tokens_per_tile = rows_of_product(heads, rows_per_tile) * heads.num_kv_heads // heads.num_heads
    head_bytes = 2 * heads.head_dim * _ELEMENT_SIZE
    passes: list[tuple[list[Run], int]] = []
    room = 0
    for run in runs:
        needed = _num_places(run, window) * head_bytes
        if needed * heads.num_kv_heads > scratch_limit:
            passes.append(([run], max(1, scratch_limit // needed)))
            room = 0
        elif needed * heads.num_kv_heads > room:
            passes.append(([run], heads.num_kv_heads))
            room = scratch_limit - needed * heads.num_kv_heads
        else:
            passes[-1][0].append(run)
            room -= needed * heads.num_kv_heads

    lists = []
    for members, _ in passes:
        lists += [_copies(members, window), _tiles(members, window, tokens_per_tile)]
    on_device = arrays_on_device(lists, rows.block_table.device)
    return PrefillPlan(
        rows=rows,
        passes=tuple(
            RunPass(num_keys=len(copies) * KEYS_PER_COPY, heads_per_slice=heads_per_slice, copies=copies, tiles=tiles)
            for (_, heads_per_slice), copies, tiles in zip(passes, on_device[0::2], on_device[1::2], strict=True)
        ),
        tokens_per_tile=tokens_per_tile,
    )


def max_scratch_bytes(
    heads: HeadShape, *, window: int | None, max_context_len: int, max_num_batched_tokens: int, element_size: int
) -> int:
    """The most scratch memory that the layers of a kind may take in a step: the limit, or one head of one run."""
    num_runs = max_num_batched_tokens // 2
    longest = max_context_len if window is None else min(max_context_len, window - 1 + max_num_batched_tokens)
    # Either end of a run is rounded to a multiple.
    rounding = KEYS_PER_COPY if window is None else 2 * KEYS_PER_COPY
    num_keys = num_runs * longest
    if window is not None:
        # Rows are shared out among the runs; each brings a window of its own.
        num_keys = min(num_keys, max_num_batched_tokens + num_runs * window)
    num_keys += num_runs * rounding
    key_bytes = 2 * heads.head_dim * element_size
    one_head = (longest + rounding) * key_bytes
    return min(num_keys * heads.num_kv_heads * key_bytes, max(SCRATCH_LIMIT * element_size // _ELEMENT_SIZE, one_head))


def _first_position(run: Run, window: int | None) -> int:
    """The first position that is unpacked."""
    return _first_visible(run, window) // KEYS_PER_COPY * KEYS_PER_COPY


def _first_visible(run: Run, window: int | None) -> int:
    """The first position that a row of the run sees."""
    return 0 if window is None else max(0, run.context_len - run.num_rows - window + 1)


def _num_places(run: Run, window: int | None) -> int:
    num_keys = run.context_len - _first_position(run, window)
    return -(-num_keys // KEYS_PER_COPY) * KEYS_PER_COPY


def _copies(runs: Sequence[Run], window: int | None) -> NDArray[np.int32]:
    parts = []
    for run in runs:
        positions = np.arange(_first_position(run, window), run.context_len, KEYS_PER_COPY)
        first_live = np.maximum(_first_visible(run, window) - positions, 0)
        end_live = np.minimum(run.context_len - positions, KEYS_PER_COPY)
        parts.append(np.stack((np.full_like(positions, run.first_row), positions, first_live, end_live), axis=1))
    return np.concatenate(parts).astype(np.int32)


def _tiles(runs: Sequence[Run], window: int | None, tokens_per_tile: int) -> NDArray[np.int32]:
    parts, first_place = [], 0
    for run in runs:
        firsts = np.arange(0, run.num_rows, tokens_per_tile)
        num_tokens = np.minimum(run.num_rows - firsts, tokens_per_tile)
        own_key = run.context_len - run.num_rows - _first_position(run, window) + firsts
        parts.append(np.stack((run.first_row + firsts, num_tokens, np.full_like(firsts, first_place), own_key), axis=1))
        first_place += _num_places(run, window)
    tiles = np.concatenate(parts)
    if window is None:
        # Tiles with many keys start first, so that none is left over when all others are done.
        tiles = tiles[np.argsort(-tiles[:, 3], kind="stable")]
    return tiles.astype(np.int32)
