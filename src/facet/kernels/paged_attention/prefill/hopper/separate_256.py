"""Heads of 256 with separate keys and values, with and without a window.

A program has 128 rows; each of its two warpgroups scores, weighs and sums 64 of them over the same tiles of 64 keys.
Scores of a tile are started before the sums of the one before, so that weights are made while sums are, and while the
other warpgroup multiplies. Shared memory holds the queries, two tiles of keys and of values, and the weights of two for
each warpgroup.

There are as many programs as multiprocessors, and each takes tiles of rows in turns: a window is short, and what a
program does before its first product and after its last would be a seventh of the time.
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
from facet.kernels.hopper import num_multiprocessors
from facet.kernels.paged_attention.cache import KeyRecipe
from facet.kernels.paged_attention.prefill.hopper.parts import (
    LAUNCH,
    SCORE_ROWS,
    SCORES,
    STORED_128,
    SUMS,
    TILE_64,
    TILE_128,
    TILE_256,
    masked,
    query_tiles,
    scaled,
    softmax_step,
    store_rows,
)
from facet.kernels.paged_attention.prefill.plan import PrefillPlan, RunPass
from facet.kernels.paged_attention.prefill.unpack import Scratch
from facet.kernels.paged_attention.prefill.visible import LEAST, LOG2_E


@gluon.jit
def _turn(turn, tiles, num_kv_heads):
    """(first row, number of tokens, first place in scratch, own key of the first row, key head).

    Heads take turns: tiles with many keys come first whatever their head, so that none is left over at the end.
    """
    tile = tiles + turn // num_kv_heads * 4
    return gl.load(tile), gl.load(tile + 1), gl.load(tile + 2), gl.load(tile + 3), turn % num_kv_heads


@gluon.jit
def _visible(first_own, num_tokens, window, HAS_WINDOW: gl.constexpr):
    """The first key that a row of the tile may see, rounded down to a tile, and the number of tiles from there."""
    start = first_own * 0
    if HAS_WINDOW:
        start = gl.maximum(first_own - window + 1, 0) // 64 * 64
    return start, gl.cdiv(first_own + num_tokens - start, 64)


@gluon.jit
def _start_scores(queries, keys, number):
    tiles, ready, _ = keys
    side = number % 2
    none = gl.zeros([64, 64], gl.float32, SCORES)
    mbarrier.wait(ready.index(side), number // 2 & 1)
    return warpgroup_mma(queries, tiles.index(side).permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def _finish_scores(started, keys, number, LATER: gl.constexpr):
    """Waits for scores and hands their keys back. LATER products that were started behind them may go on."""
    _, _, free = keys
    scores = warpgroup_mma_wait(LATER, deps=(started,))
    thread_barrier()
    mbarrier.arrive(free.index(number % 2), count=1)
    return scores


@gluon.jit
def _start_sums(sums, shrink, weight_tiles, values, number):
    tiles, ready, _ = values
    side = number % 2
    sums = scaled(sums, shrink)
    mbarrier.wait(ready.index(side), number // 2 & 1)
    return warpgroup_mma(weight_tiles.index(side), tiles.index(side), sums, is_async=True)


@gluon.jit
def _finish_sums(started, values, number):
    _, _, free = values
    sums = warpgroup_mma_wait(0, deps=(started,))
    thread_barrier()
    mbarrier.arrive(free.index(number % 2), count=1)
    return sums


@gluon.jit
def _attend(
    queries, weight_tiles, keys, values, tiles, output, num_turns, num_kv_heads, num_heads, first_head, scale, window,
    FIRST_TOKEN: gl.constexpr, HAS_WINDOW: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """64 rows of every tile of rows, from its token FIRST_TOKEN on."""
    query_tile, queries_ready, queries_free = queries
    rows = query_tile.reshape([64, 256])
    phase = 0
    number = 0  # of a tile of keys, over all turns
    first_row, num_tokens, _, first_own, head = _turn(gl.program_id(0), tiles, num_kv_heads)
    for turn in range(gl.program_id(0), num_turns, gl.num_programs(0)):
        # Asked for early: it takes as long to come as half a tile of keys.
        following = gl.minimum(turn + gl.num_programs(0), num_turns - 1)
        next_row, next_num_tokens, _, next_own, next_head = _turn(following, tiles, num_kv_heads)
        start, num_tiles = _visible(first_own, num_tokens, window, HAS_WINDOW)
        own = first_own + FIRST_TOKEN
        greatest = gl.full([64], LEAST, gl.float32, SCORE_ROWS)
        weight_sum = gl.zeros([64], gl.float32, SCORE_ROWS)
        sums = gl.zeros([64, 256], gl.float32, SUMS)
        mbarrier.wait(queries_ready, phase)
        started = _start_scores(rows, keys, number)
        scores = masked(_finish_scores(started, keys, number, 0), start, own, window, HAS_WINDOW, GROUP)
        weights, shrink, greatest, weight_sum = softmax_step(scores, greatest, weight_sum, scale)
        weight_tiles.index(number % 2).store(weights)
        fence_async_shared()
        thread_barrier()
        for tile in range(1, num_tiles):
            started = _start_scores(rows, keys, number + 1)
            added = _start_sums(sums, shrink, weight_tiles, values, number)
            scores = _finish_scores(started, keys, number + 1, 1)
            scores = masked(scores, start + tile * 64, own, window, HAS_WINDOW, GROUP)
            weights, shrink, greatest, weight_sum = softmax_step(scores, greatest, weight_sum, scale)
            # Stored before sums are waited for: the compiler would wait first, and make the weights afterwards.
            weight_tiles.index((number + 1) % 2).store(weights)
            fence_async_shared()
            sums = _finish_sums(added, values, number)
            number += 1
        mbarrier.arrive(queries_free, count=1)
        added = _start_sums(sums, shrink, weight_tiles, values, number)
        sums = _finish_sums(added, values, number)
        number += 1
        phase = phase ^ 1
        numbers = scaled(sums, 1.0 / weight_sum).to(gl.bfloat16)
        halves = gl.split(gl.permute(gl.reshape(numbers, [64, 2, 128]), [0, 2, 1]))
        result = output + (first_row.to(gl.int64) * num_heads + (first_head + head) * GROUP) * 256
        # Results go to memory through the place of the weights.
        stage = weight_tiles._reinterpret(gl.bfloat16, [64, 128], TILE_128)
        for half in gl.static_range(2):
            dims = half * 128 + gl.arange(0, 128, gl.SliceLayout(0, STORED_128))
            store_rows(
                stage, halves[half], result, dims, FIRST_TOKEN, num_tokens, num_heads, 256, GROUP, STORED_128
            )  # fmt: skip
            thread_barrier()
        first_row = next_row
        num_tokens = next_num_tokens
        first_own = next_own
        head = next_head


@gluon.jit
def _load_queries(queries, query_tiles, first_row, first_query, phase):
    query_tile, ready, free = queries
    mbarrier.wait(free, phase)
    mbarrier.expect(ready, 64 * 256 * 2)
    copy_tile(query_tiles, [first_row, first_query, 0], ready, query_tile)


@gluon.jit
def _load_vectors(vectors, vector_tiles, place, number):
    tiles, ready, free = vectors
    side = number % 2
    mbarrier.wait(free.index(side), (number // 2 & 1) ^ 1)
    mbarrier.expect(ready.index(side), 64 * 256 * 2)
    copy_tile(vector_tiles, [place, 0], ready.index(side), tiles.index(side))


@gluon.jit
def _load(
    first_queries, second_queries, keys, values, query_tiles, key_tiles, value_tiles, tiles, num_turns, num_kv_heads,
    num_keys, first_head, window, HAS_WINDOW: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    phase = 1
    number = 0
    for turn in range(gl.program_id(0), num_turns, gl.num_programs(0)):
        first_row, num_tokens, first_place, first_own, head = _turn(turn, tiles, num_kv_heads)
        start, num_tiles = _visible(first_own, num_tokens, window, HAS_WINDOW)
        place = first_place + head * num_keys + start
        first_query = (first_head + head) * GROUP
        _load_queries(first_queries, query_tiles, first_row, first_query, phase)
        _load_queries(second_queries, query_tiles, first_row + 64 // GROUP, first_query, phase)
        phase = phase ^ 1
        for tile in range(num_tiles):
            _load_vectors(keys, key_tiles, place + tile * 64, number)
            _load_vectors(values, value_tiles, place + tile * 64, number)
            number += 1


# Not specialized: one kernel serves all steps.
@gluon.jit(do_not_specialize=["window", "num_turns", "num_kv_heads", "num_keys", "num_heads", "first_head"])
def separate_256_kernel(
    query_tiles,
    output,
    key_tiles,
    value_tiles,
    tiles,
    scale,  # times log2(e)
    window,
    num_turns,
    num_kv_heads,
    num_keys,
    num_heads,
    first_head,
    HAS_WINDOW: gl.constexpr,
    GROUP: gl.constexpr,
):
    TOKENS: gl.constexpr = 64 // GROUP
    first_tile = gl.allocate_shared_memory(gl.bfloat16, [TOKENS, GROUP, 256], query_tiles.layout)
    second_tile = gl.allocate_shared_memory(gl.bfloat16, [TOKENS, GROUP, 256], query_tiles.layout)
    key_buffers = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], TILE_256)
    value_buffers = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], TILE_256)
    first_weights = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], TILE_64)
    second_weights = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], TILE_64)
    first = (first_tile, barrier(1), barrier(1))
    second = (second_tile, barrier(1), barrier(1))
    keys = (key_buffers, barriers(2, 1), barriers(2, 2))
    values = (value_buffers, barriers(2, 1), barriers(2, 2))
    gl.warp_specialize(
        [
            (
                _load,
                (first, second, keys, values, query_tiles, key_tiles, value_tiles, tiles, num_turns, num_kv_heads,
                 num_keys, first_head, window, HAS_WINDOW, GROUP),
            ),
            (
                _attend,
                (first, first_weights, keys, values, tiles, output, num_turns, num_kv_heads, num_heads, first_head,
                 scale, window, 0, HAS_WINDOW, GROUP),
            ),
            (
                _attend,
                (second, second_weights, keys, values, tiles, output, num_turns, num_kv_heads, num_heads, first_head,
                 scale, window, TOKENS, HAS_WINDOW, GROUP),
            ),
        ],
        [4, 4],
        [240, 240],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Separate256Kernel:
    """A `PrefillKernel` over separate keys and values of 256."""

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
        assert plan.tokens_per_tile * group == 128, "a program has the rows of a tile of the plan"
        num_turns = len(run_pass.tiles) * len(heads)
        return separate_256_kernel[(min(num_turns, num_multiprocessors(queries.device)),)](
            query_tiles(queries, group),
            output,
            vector_tiles(scratch.keys, 256),
            vector_tiles(scratch.values, 256),
            run_pass.tiles,
            scale * LOG2_E,
            plan.rows.window,
            num_turns,
            len(heads),
            run_pass.num_keys,
            num_heads,
            heads.start,
            HAS_WINDOW=plan.rows.window > 0,
            GROUP=group,
            **LAUNCH,
        )
