"""Heads of 512 with separate keys and values.

64 rows of 512 sums fill the registers of two warpgroups. One scores every tile of 64 keys and sums the second half of
the dimensions; the other sums the first, whose weights it is given in shared memory. Scores of a tile are started
before the sums of the one before, so that weights are made while both halves are summed. Keys come 128 dimensions at a
time and are handed back one by one. Shared memory holds the queries, a tile and a quarter of keys, one tile of values,
and the weights of two.
"""

from dataclasses import dataclass

from torch import Tensor

from facet.kernels.gluon_names import (
    copy_tile,
    gl,
    gluon,
    mbarrier,
    thread_barrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from facet.kernels.gluon_parts import barrier, barriers, vector_tiles
from facet.kernels.paged_attention.cache import KeyRecipe
from facet.kernels.paged_attention.prefill.hopper.parts import (
    LAUNCH,
    PLAIN,
    SCORE_ROWS,
    SCORES,
    STORED_256,
    SUMS,
    TILE_128,
    TILE_256,
    hand_over,
    make_weights,
    masked,
    query_tiles,
    scaled,
    softmax_step,
    store_rows,
    sum_values,
    tile_of_program,
)
from facet.kernels.paged_attention.prefill.plan import PrefillPlan, RunPass
from facet.kernels.paged_attention.prefill.unpack import Scratch
from facet.kernels.paged_attention.prefill.visible import LEAST, LOG2_E

# Quarters of tiles of keys: as many as fit.
SLOTS = gl.constexpr(5)


@gluon.jit
def _start_scores(queries, keys, tile):
    quarters, ready, _ = keys
    scores = gl.zeros([64, 64], gl.float32, SCORES)
    for part in gl.static_range(4):
        number = tile * 4 + part
        slot = number % SLOTS
        mbarrier.wait(ready.index(slot), number // SLOTS & 1)
        query = queries.slice(part * 128, 128, dim=1)
        key = quarters.index(slot).permute((1, 0))
        scores = warpgroup_mma(query, key, scores, use_acc=part > 0, is_async=True)
    return scores


@gluon.jit
def _finish_scores(scores, keys, tile, LATER: gl.constexpr):
    """Keys are handed back as products with them end. LATER products that were started behind them may go on."""
    _, _, free = keys
    for part in gl.static_range(4):
        scores = warpgroup_mma_wait(3 - part + LATER, deps=(scores,))
        thread_barrier()
        mbarrier.arrive(free.index((tile * 4 + part) % SLOTS), count=1)
    return scores


@gluon.jit
def _score_and_sum(
    queries, keys, second, weights, totals, output, num_tiles, num_tokens, first_own, num_heads, scale,
    GROUP: gl.constexpr,
):  # fmt: skip
    """Makes all scores, and the second half of the sums."""
    query_tile, queries_ready = queries
    values, values_ready, values_free = second
    weight_tiles, _, _, _ = weights
    total_weights, totals_ready = totals
    rows = query_tile.reshape([64, 512])
    greatest = gl.full([64], LEAST, gl.float32, SCORE_ROWS)
    weight_sum = gl.zeros([64], gl.float32, SCORE_ROWS)
    sums = gl.zeros([64, 256], gl.float32, SUMS)
    mbarrier.wait(queries_ready, 0)
    started = _start_scores(rows, keys, 0)
    scores = masked(_finish_scores(started, keys, 0, 0), 0, first_own, 0, False, GROUP)
    new_weights, shrink, greatest, weight_sum = softmax_step(scores, greatest, weight_sum, scale)
    hand_over(new_weights, shrink, weights, 0)
    for tile in range(1, num_tiles):
        last = tile - 1
        started = _start_scores(rows, keys, tile)
        sums = scaled(sums, shrink)
        mbarrier.wait(values_ready.index(0), last & 1)
        added = warpgroup_mma(weight_tiles.index(last % 2), values.index(0), sums, is_async=True)
        scores = masked(_finish_scores(started, keys, tile, 1), tile * 64, first_own, 0, False, GROUP)
        new_weights, shrink, greatest, weight_sum = softmax_step(scores, greatest, weight_sum, scale)
        hand_over(new_weights, shrink, weights, tile)
        sums = warpgroup_mma_wait(0, deps=(added,))
        thread_barrier()
        mbarrier.arrive(values_free.index(0), count=1)
    total_weights.store(weight_sum)
    thread_barrier()
    mbarrier.arrive(totals_ready, count=1)
    last = num_tiles - 1
    sums = scaled(sums, shrink)
    mbarrier.wait(values_ready.index(0), last & 1)
    added = warpgroup_mma(weight_tiles.index(last % 2), values.index(0), sums, is_async=True)
    sums = warpgroup_mma_wait(0, deps=(added,))
    _store(rows, sums, weight_sum, output, num_tokens, num_heads, 256, GROUP)


@gluon.jit
def _sum(queries, first, weights, totals, output, num_tiles, num_tokens, num_heads, GROUP: gl.constexpr):
    """Makes the first half of the sums."""
    query_tile, _ = queries
    total_weights, totals_ready = totals
    sums = sum_values(first, weights, num_tiles, 1)
    # By then all scores are made, and the queries' place is free for results.
    mbarrier.wait(totals_ready, 0)
    weight_sum = total_weights.load(SCORE_ROWS)
    _store(query_tile.reshape([64, 512]), sums, weight_sum, output, num_tokens, num_heads, 0, GROUP)


@gluon.jit
def _store(rows, sums, weight_sum, output, num_tokens, num_heads, FIRST: gl.constexpr, GROUP: gl.constexpr):
    numbers = scaled(sums, 1.0 / weight_sum).to(gl.bfloat16)
    dims = FIRST + gl.arange(0, 256, gl.SliceLayout(0, STORED_256))
    stage = rows.slice(FIRST, 256, dim=1)
    store_rows(stage, numbers, output, dims, 0, num_tokens, num_heads, 512, GROUP, STORED_256)


@gluon.jit
def _load_keys(keys, key_tiles, place, tile):
    quarters, ready, free = keys
    for part in gl.static_range(4):
        number = tile * 4 + part
        slot = number % SLOTS
        mbarrier.wait(free.index(slot), (number // SLOTS & 1) ^ 1)
        mbarrier.expect(ready.index(slot), 64 * 128 * 2)
        copy_tile(key_tiles, [place, part * 128], ready.index(slot), quarters.index(slot))


@gluon.jit
def _load_values(half, value_tiles, place, tile, FIRST: gl.constexpr):
    values, ready, free = half
    mbarrier.wait(free.index(0), (tile & 1) ^ 1)
    mbarrier.expect(ready.index(0), 64 * 256 * 2)
    copy_tile(value_tiles, [place, FIRST], ready.index(0), values.index(0))


@gluon.jit
def _load(
    queries, keys, first, second, num_tiles, query_tiles, key_tiles, value_tiles, first_row, first_query, first_place
):
    """Loads queries, keys and values in the order in which they are needed: keys of a tile before values of the tile
    before it."""
    query_tile, queries_ready = queries
    mbarrier.expect(queries_ready, 64 * 512 * 2)
    copy_tile(query_tiles, [first_row, first_query, 0], queries_ready, query_tile)
    _load_keys(keys, key_tiles, first_place, 0)
    for last in range(num_tiles):
        place = first_place + last * 64
        if last + 1 < num_tiles:
            _load_keys(keys, key_tiles, place + 64, last + 1)
        _load_values(first, value_tiles, place, last, 0)
        _load_values(second, value_tiles, place, last, 256)


# Not specialized: one kernel serves all steps.
@gluon.jit(do_not_specialize=["num_keys", "num_heads", "first_head"])
def separate_512_kernel(
    query_tiles,
    output,
    key_tiles,
    value_tiles,
    tiles,
    scale,  # times log2(e)
    num_keys,
    num_heads,
    first_head,
    PROGRAMS_PER_TILE: gl.constexpr,
    GROUP: gl.constexpr,
):
    first_row, num_tokens, first_place, first_own = tile_of_program(tiles, num_keys, PROGRAMS_PER_TILE, GROUP)
    # Without a token one tile is taken, and nothing written.
    num_tiles = gl.where(num_tokens > 0, gl.cdiv(first_own + num_tokens, 64), 1)
    first_query = (first_head + gl.program_id(1)) * GROUP
    result = output + (first_row.to(gl.int64) * num_heads + first_query) * 512
    query_tile = gl.allocate_shared_memory(gl.bfloat16, [64 // GROUP, GROUP, 512], query_tiles.layout)
    quarters = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, 64, 128], TILE_128)
    first_values = gl.allocate_shared_memory(gl.bfloat16, [1, 64, 256], TILE_256)
    second_values = gl.allocate_shared_memory(gl.bfloat16, [1, 64, 256], TILE_256)
    total_weights = gl.allocate_shared_memory(gl.float32, [64], PLAIN)
    queries = (query_tile, barrier(1))
    keys = (quarters, barriers(SLOTS, 1), barriers(SLOTS, 1))
    first = (first_values, barriers(1, 1), barriers(1, 1))
    second = (second_values, barriers(1, 1), barriers(1, 1))
    weights = make_weights()
    totals = (total_weights, barrier(1))
    gl.warp_specialize(
        [
            (
                _load,
                (queries, keys, first, second, num_tiles, query_tiles, key_tiles, value_tiles, first_row, first_query,
                 first_place),
            ),
            (
                _score_and_sum,
                (queries, keys, second, weights, totals, result, num_tiles, num_tokens, first_own, num_heads, scale,
                 GROUP),
            ),
            (_sum, (queries, first, weights, totals, result, num_tiles, num_tokens, num_heads, GROUP)),
        ],
        [4, 4],
        [240, 240],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Separate512Kernel:
    """A `PrefillKernel` over separate keys and values of 512, without a window."""

    @property
    def is_shared(self) -> bool:
        return False

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
        assert scale > 0, "the greatest score is found before scores are scaled"
        assert not plan.rows.sees_ahead, "a row's own key is the last that it sees"
        num_heads = queries.shape[1]
        group = num_heads // plan.rows.heads.num_kv_heads
        programs_per_tile = -(-plan.tokens_per_tile * group // 64)
        return separate_512_kernel[(len(run_pass.tiles) * programs_per_tile, len(heads))](
            query_tiles(queries, group),
            output,
            vector_tiles(scratch.keys, 128),
            vector_tiles(scratch.values, 256),
            run_pass.tiles,
            scale * LOG2_E,
            run_pass.num_keys,
            num_heads,
            heads.start,
            PROGRAMS_PER_TILE=programs_per_tile,
            GROUP=group,
            **LAUNCH,
        )
