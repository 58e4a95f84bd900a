"""Heads of 512 whose vectors are shared: a tile of values is loaded once, and serves as keys and as values.

Three quarters of a key's dimensions do not rotate: there q . k = (q * w) . v. So a tile of 64 keys is its values, with
the dimensions that rotate last, and the rotated quarter as a key of its own:

    values  | still, 256        | still, 128 | rotating, 128 |        rotated keys  | 128 |
            | first half        | second half                |

64 rows of 512 sums fill the registers of two warpgroups. One scores every tile and sums the second half; the other sums
the first, whose weights it is given in shared memory. Scores of a tile are started before the sums of the one before,
so that weights are made while both halves are summed. Shared memory holds the queries, two tiles of values, the rotated
keys of one, and the weights of two.
"""

from dataclasses import dataclass

from torch import Tensor

from facet.kernels.gluon_names import (
    copy_tile,
    fence_async_shared,
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
    scaled,
    softmax_step,
    store_rows,
    sum_values,
    tile_of_program,
)
from facet.kernels.paged_attention.prefill.plan import PrefillPlan, RunPass
from facet.kernels.paged_attention.prefill.unpack import Scratch
from facet.kernels.paged_attention.prefill.visible import LEAST, LOG2_E

# Queries are loaded 64 dimensions at a time.
LOADED = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.constexpr_function
def _first_dim(stretch):
    """Where 64 dimensions of scratch begin in a head. Those that rotate, the first of either half, come last in
    scratch."""
    if stretch >= 6:
        return (stretch - 6) * 256
    return 64 + stretch * 64 + (64 if stretch >= 3 else 0)


@gluon.jit
def _put_queries(target, queries, key_weight, num_tokens, num_heads, FIRST: gl.constexpr, GROUP: gl.constexpr):
    """Four of the eight stretches of 64 dimensions, still ones times the weights of keys."""
    members = gl.arange(0, 64, gl.SliceLayout(1, LOADED))
    tokens = members // GROUP
    rows = gl.expand_dims((tokens * num_heads + members % GROUP) * 512, 1)
    is_row = gl.expand_dims(tokens < num_tokens, 1)
    for stretch in gl.static_range(FIRST, FIRST + 4):
        dims = _first_dim(stretch) + gl.arange(0, 64, gl.SliceLayout(0, LOADED))
        numbers = gl.load(queries + rows + gl.expand_dims(dims, 0), mask=is_row, other=0.0)
        if stretch < 6:
            weight = gl.expand_dims(gl.load(key_weight + dims), 0)
            numbers = (numbers.to(gl.float32) * weight).to(gl.bfloat16)
        target.slice((stretch - FIRST) * 64, 64, dim=1).store(numbers)
    fence_async_shared()
    thread_barrier()


@gluon.jit
def _start_scores(queries, first, second, rotated, tile):
    """Starts the products of a tile's scores. Its parts are taken in the order in which they come in."""
    first_queries, second_queries, _ = queries
    first_values, first_ready, _ = first
    second_values, second_ready, _ = second
    rotated_keys, rotated_ready, _ = rotated
    side = tile % 2
    phase = tile // 2 & 1
    none = gl.zeros([64, 64], gl.float32, SCORES)
    mbarrier.wait(first_ready.index(side), phase)
    keys = first_values.index(side).permute((1, 0))
    scores = warpgroup_mma(first_queries, keys, none, use_acc=False, is_async=True)
    mbarrier.wait(rotated_ready, tile & 1)
    scores = warpgroup_mma(second_queries.slice(128, 128, dim=1), rotated_keys.permute((1, 0)), scores, is_async=True)
    mbarrier.wait(second_ready.index(side), phase)
    keys = second_values.index(side).slice(0, 128, dim=1).permute((1, 0))
    return warpgroup_mma(second_queries.slice(0, 128, dim=1), keys, scores, is_async=True)


@gluon.jit
def _finish_scores(started, rotated, LATER: gl.constexpr):
    """Waits for scores. LATER products that were started behind them may go on. The rotated keys are not needed any
    more."""
    _, _, rotated_free = rotated
    scores = warpgroup_mma_wait(LATER, deps=(started,))
    thread_barrier()
    mbarrier.arrive(rotated_free, count=1)
    return scores


@gluon.jit
def _score_and_sum(
    queries, first, second, rotated, weights, totals, source, output, key_weight, num_tiles, num_tokens, first_own,
    num_heads, scale, GROUP: gl.constexpr,
):  # fmt: skip
    """Makes all scores, and the second half of the sums."""
    _, second_queries, queries_ready = queries
    values, _, values_free = second
    weight_tiles, _, _, _ = weights
    total_weights, totals_ready = totals
    _put_queries(second_queries, source, key_weight, num_tokens, num_heads, 4, GROUP)
    mbarrier.arrive(queries_ready, count=1)
    mbarrier.wait(queries_ready, 0)
    greatest = gl.full([64], LEAST, gl.float32, SCORE_ROWS)
    weight_sum = gl.zeros([64], gl.float32, SCORE_ROWS)
    sums = gl.zeros([64, 256], gl.float32, SUMS)
    started = _start_scores(queries, first, second, rotated, 0)
    scores = masked(_finish_scores(started, rotated, 0), 0, first_own, 0, False, GROUP)
    new_weights, shrink, greatest, weight_sum = softmax_step(scores, greatest, weight_sum, scale)
    hand_over(new_weights, shrink, weights, 0)
    for tile in range(1, num_tiles):
        side = (tile - 1) % 2
        started = _start_scores(queries, first, second, rotated, tile)
        sums = scaled(sums, shrink)
        added = warpgroup_mma(weight_tiles.index(side), values.index(side), sums, is_async=True)
        scores = masked(_finish_scores(started, rotated, 1), tile * 64, first_own, 0, False, GROUP)
        new_weights, shrink, greatest, weight_sum = softmax_step(scores, greatest, weight_sum, scale)
        hand_over(new_weights, shrink, weights, tile)
        sums = warpgroup_mma_wait(0, deps=(added,))
        thread_barrier()
        mbarrier.arrive(values_free.index(side), count=1)
    total_weights.store(weight_sum)
    thread_barrier()
    mbarrier.arrive(totals_ready, count=1)
    side = (num_tiles - 1) % 2
    sums = scaled(sums, shrink)
    added = warpgroup_mma(weight_tiles.index(side), values.index(side), sums, is_async=True)
    sums = warpgroup_mma_wait(0, deps=(added,))
    order = 256 + gl.arange(0, 256, gl.SliceLayout(0, STORED_256))
    dims = gl.where(order < 384, order + 128, gl.where(order < 448, order - 384, order - 192))
    _store(second_queries, sums, weight_sum, output, dims, num_tokens, num_heads, GROUP)


@gluon.jit
def _sum(
    queries, first, weights, totals, source, output, key_weight, num_tiles, num_tokens, num_heads, GROUP: gl.constexpr
):
    """Makes the first half of the sums."""
    first_queries, _, queries_ready = queries
    total_weights, totals_ready = totals
    _put_queries(first_queries, source, key_weight, num_tokens, num_heads, 0, GROUP)
    mbarrier.arrive(queries_ready, count=1)
    sums = sum_values(first, weights, num_tiles, 2)
    # By then all scores are made, and the queries' place is free for results.
    mbarrier.wait(totals_ready, 0)
    order = gl.arange(0, 256, gl.SliceLayout(0, STORED_256))
    dims = gl.where(order < 192, order + 64, order + 128)
    _store(first_queries, sums, total_weights.load(SCORE_ROWS), output, dims, num_tokens, num_heads, GROUP)


@gluon.jit
def _store(stage, sums, weight_sum, output, dims, num_tokens, num_heads, GROUP: gl.constexpr):
    numbers = scaled(sums, 1.0 / weight_sum).to(gl.bfloat16)
    dims = gl.max_contiguous(gl.multiple_of(dims, 8), 8)
    store_rows(stage, numbers, output, dims, 0, num_tokens, num_heads, 512, GROUP, STORED_256)


@gluon.jit
def _load(first, second, rotated, num_tiles, first_place, value_tiles, key_tiles):
    first_values, first_ready, first_free = first
    second_values, second_ready, second_free = second
    rotated_keys, rotated_ready, rotated_free = rotated
    for tile in range(num_tiles):
        side = tile % 2
        phase = (tile // 2 & 1) ^ 1
        place = first_place + tile * 64
        mbarrier.wait(first_free.index(side), phase)
        mbarrier.expect(first_ready.index(side), 64 * 256 * 2)
        copy_tile(value_tiles, [place, 0], first_ready.index(side), first_values.index(side))
        mbarrier.wait(rotated_free, (tile & 1) ^ 1)
        mbarrier.expect(rotated_ready, 64 * 128 * 2)
        copy_tile(key_tiles, [place, 0], rotated_ready, rotated_keys)
        mbarrier.wait(second_free.index(side), phase)
        mbarrier.expect(second_ready.index(side), 64 * 256 * 2)
        copy_tile(value_tiles, [place, 256], second_ready.index(side), second_values.index(side))


# Not specialized: one kernel serves all steps.
@gluon.jit(do_not_specialize=["num_keys", "num_heads", "first_head"])
def shared_512_kernel(
    queries,
    output,
    value_tiles,
    key_tiles,
    key_weight,
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
    start = (first_row.to(gl.int64) * num_heads + (first_head + gl.program_id(1)) * GROUP) * 512
    first_queries = gl.allocate_shared_memory(gl.bfloat16, [64, 256], TILE_256)
    second_queries = gl.allocate_shared_memory(gl.bfloat16, [64, 256], TILE_256)
    first_values = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], TILE_256)
    second_values = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], TILE_256)
    rotated_keys = gl.allocate_shared_memory(gl.bfloat16, [64, 128], TILE_128)
    total_weights = gl.allocate_shared_memory(gl.float32, [64], PLAIN)
    query_parts = (first_queries, second_queries, barrier(2))
    first = (first_values, barriers(2, 1), barriers(2, 1))
    second = (second_values, barriers(2, 1), barriers(2, 1))
    rotated = (rotated_keys, barrier(1), barrier(1))
    weights = make_weights()
    totals = (total_weights, barrier(1))
    source = queries + start
    result = output + start
    gl.warp_specialize(
        [
            (_load, (first, second, rotated, num_tiles, first_place, value_tiles, key_tiles)),
            (
                _score_and_sum,
                (query_parts, first, second, rotated, weights, totals, source, result, key_weight, num_tiles,
                 num_tokens, first_own, num_heads, scale, GROUP),
            ),
            (
                _sum,
                (query_parts, first, weights, totals, source, result, key_weight, num_tiles, num_tokens, num_heads,
                 GROUP),
            ),
        ],
        [4, 4],
        [240, 240],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared512Kernel:
    """A `PrefillKernel` over shared vectors of 512, 128 of whose dimensions rotate; without a window."""

    @property
    def is_shared(self) -> bool:
        return True

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
        assert key_recipe is not None, "shared vectors need a recipe for their keys"
        num_heads = queries.shape[1]
        group = num_heads // plan.rows.heads.num_kv_heads
        programs_per_tile = -(-plan.tokens_per_tile * group // 64)
        return shared_512_kernel[(len(run_pass.tiles) * programs_per_tile, len(heads))](
            queries,
            output,
            vector_tiles(scratch.values, 256),
            vector_tiles(scratch.keys, 128),
            key_recipe.weight,
            run_pass.tiles,
            scale * LOG2_E,
            run_pass.num_keys,
            num_heads,
            heads.start,
            PROGRAMS_PER_TILE=programs_per_tile,
            GROUP=group,
            **LAUNCH,
        )
