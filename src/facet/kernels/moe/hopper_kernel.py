"""Products of experts for many pairs on Hopper GPUs, in Gluon: a tile of 128 pairs by 256 rows of a weight.

Inputs are taken 64 at a time. One partition of warps copies them into shared memory, STAGES ahead, and goes on with the
next tile while the last is still multiplied or stored. Two warpgroups multiply 64 pairs each by the same rows of the
weight, and keep one product waiting behind the one that runs. A *ready* barrier says that a stage has landed, a *free*
one that both are done with it.

    stage   | 64 pairs | 64 pairs | 64 rows of the weight | 64 | 64 | 64 |        64 inputs each

Of the first product, half of the rows are gate's and half are up's: column c of either lies in the same thread, and
geglu is taken where the sums are. Its pairs lie scattered in x, so that threads copy them; everything else is copied by
descriptors, which leave zeros where a matrix ends.

There are as many programs as multiprocessors, and each takes one tile after another (`hopper_turns.py`). Of a tile with
64 pairs or less, the second warpgroup multiplies nothing. Both begin together: where the first was two stages ahead, so
that one multiplies while the other stores, experts of 26B-A4B took 0 to 2% longer on an H200.

A sum is one chain over inputs, 16 at a time from first to last (`linear/chain.py`).
"""

from facet.kernels.gluon_parts import barriers
from facet.kernels.moe.hopper_turns import groups_of, make_turns, num_tiles, num_wide, tell, tile_of, told
from facet.kernels.moe.language import (
    arrive_after_copies,
    copy_tile,
    copy_to_shared,
    fence_async_shared,
    gl,
    gluon,
    let_through,
    mbarrier,
    start_after_previous,
    thread_barrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

GROUP_SIZE = 128  # pairs of a tile

STAGES = gl.constexpr(4)
# Tiles in shared memory, as copies write and products read them.
TILE = gl.constexpr(gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16))
NARROW_TILE = gl.constexpr(gl.NVMMASharedLayout.get_default_for([128, 64], gl.bfloat16))
WIDE_TILE = gl.constexpr(gl.NVMMASharedLayout.get_default_for([256, 64], gl.bfloat16))
STAGED = gl.constexpr(gl.NVMMASharedLayout.get_default_for([64, 128], gl.bfloat16))
# Sums in the registers of a warpgroup.
NARROW_SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
WIDE_SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
# Rows of x as they are copied, and results as they are stored: 64 or 128 columns at a time.
BY_64 = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
BY_128 = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))

# Three partitions of four warps. A thread of those that multiply gets 208 registers, of which sums take 128, and one of
# those that load what is left, 88: together as many as a launch with 168 for everybody has.
LAUNCH = {"num_warps": 4, "maxnreg": 168}


@gluon.jit
def _place_of_rows(source, order, first_place, end, NUM_IN: gl.constexpr, NUM_CHOSEN: gl.constexpr):
    """The places of 64 inputs of the rows of 64 pairs; beyond the group's last pair, those of that pair again."""
    places = gl.minimum(first_place + gl.arange(0, 64, gl.SliceLayout(1, BY_64)), end - 1)
    rows = gl.load(order + places) // NUM_CHOSEN
    inputs = gl.arange(0, 64, gl.SliceLayout(0, BY_64))
    return source + gl.expand_dims(rows.to(gl.int64) * NUM_IN, 1) + gl.expand_dims(inputs, 0)


@gluon.jit
def _load(
    buffers, turns, source, weight_tiles, order, table, taken, first_group, num_groups, first_expert,
    NUM_OUT: gl.constexpr, NUM_IN: gl.constexpr, NUM_CHOSEN: gl.constexpr, IS_FIRST: gl.constexpr,
):  # fmt: skip
    NUM_TILES: gl.constexpr = num_tiles(NUM_OUT)
    number = 0
    num_told = 0
    turn = gl.program_id(0)
    while turn < num_groups * NUM_TILES:
        expert, first_place, end, tile = tile_of(turn, table, first_group, num_groups, NUM_OUT)
        tell(turns, num_told, first_place, end, tile)
        _load_tile(
            buffers, number, source, weight_tiles, order, expert - first_expert, first_place, end, tile,
            NUM_OUT, NUM_IN, NUM_CHOSEN, IS_FIRST,
        )  # fmt: skip
        num_told += 1
        number += (NUM_IN + 63) // 64
        num_taken = gl.atomic_add(taken, 1, sem="relaxed", scope="gpu")
        # One for each tile: whoever adds the last leaves zero to the next launch.
        if num_taken == num_groups * NUM_TILES - 1:
            gl.store(taken, 0)
        turn = gl.num_programs(0) + num_taken
    tell(turns, num_told, turn, turn * 0, turn)


@gluon.jit
def _load_tile(
    buffers, number, source, weight_tiles, order, expert, first_place, end, tile,
    NUM_OUT: gl.constexpr, NUM_IN: gl.constexpr, NUM_CHOSEN: gl.constexpr, IS_FIRST: gl.constexpr,
):  # fmt: skip
    rows, weights, ready, free = buffers
    is_wide = tile < num_wide(NUM_OUT)
    is_tall = end - first_place > 64
    weight_row = expert * NUM_OUT + tile * (128 if IS_FIRST else 256)
    # The first of the second half of the tile's rows.
    other_row = weight_row + (NUM_OUT // 2 if IS_FIRST else gl.where(is_wide, 128, 64))
    if IS_FIRST:
        first_rows = _place_of_rows(source, order, first_place, end, NUM_IN, NUM_CHOSEN)
        second_rows = _place_of_rows(source, order, first_place + 64, end, NUM_IN, NUM_CHOSEN)
    for start in range(0, NUM_IN, 64):
        stage = number % STAGES
        landed = ready.index(stage)
        mbarrier.wait(free.index(stage), (number // STAGES & 1) ^ 1)
        if is_wide:
            mbarrier.expect(landed, 256 * 64 * 2)
            copy_tile(weight_tiles, [weight_row, start], landed, weights.index(stage * 4))
            copy_tile(weight_tiles, [weight_row + 64, start], landed, weights.index(stage * 4 + 1))
            copy_tile(weight_tiles, [other_row, start], landed, weights.index(stage * 4 + 2))
            copy_tile(weight_tiles, [other_row + 64, start], landed, weights.index(stage * 4 + 3))
        else:
            mbarrier.expect(landed, 128 * 64 * 2)
            copy_tile(weight_tiles, [weight_row, start], landed, weights.index(stage * 4))
            copy_tile(weight_tiles, [other_row, start], landed, weights.index(stage * 4 + 1))
        if IS_FIRST:
            copy_to_shared(rows.index(stage * 2), first_rows + start)
            if is_tall:
                copy_to_shared(rows.index(stage * 2 + 1), second_rows + start)
            arrive_after_copies(landed, increment_count=False)
        else:
            if is_tall:
                mbarrier.expect(landed, 128 * 64 * 2)
                copy_tile(source, [first_place, start], landed, rows.index(stage * 2))
                copy_tile(source, [first_place + 64, start], landed, rows.index(stage * 2 + 1))
            else:
                mbarrier.expect(landed, 64 * 64 * 2)
                copy_tile(source, [first_place, start], landed, rows.index(stage * 2))
        number += 1


@gluon.jit
def _start_product(sums, rows, weights, ready, number, WIDTH: gl.constexpr, HALF: gl.constexpr, IS_FIRST: gl.constexpr):
    stage = number % STAGES
    mbarrier.wait(ready.index(stage), number // STAGES & 1)
    if IS_FIRST:  # what threads copied
        fence_async_shared()
    tile = weights.index(stage * (256 // WIDTH)).permute((1, 0))
    return warpgroup_mma(rows.index(stage * 2 + HALF), tile, sums, is_async=True)


@gluon.jit
def _give_back(free, number):
    thread_barrier()
    mbarrier.arrive(free.index(number % STAGES), count=1)


@gluon.jit
def _sums(
    rows, weights, ready, free, number,
    NUM_IN: gl.constexpr, HALF: gl.constexpr, IS_FIRST: gl.constexpr, WIDTH: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """64 pairs times WIDTH rows of the weight, over all inputs."""
    sums = gl.zeros([64, WIDTH], gl.float32, LAYOUT)
    started = _start_product(sums, rows, weights, ready, number, WIDTH, HALF, IS_FIRST)
    sums = warpgroup_mma_wait(1, deps=(started,))
    for behind in range(number, number + (NUM_IN + 63) // 64 - 1):
        started = _start_product(sums, rows, weights, ready, behind + 1, WIDTH, HALF, IS_FIRST)
        sums = warpgroup_mma_wait(1, deps=(started,))
        _give_back(free, behind)
    sums = warpgroup_mma_wait(0, deps=(sums,))
    _give_back(free, number + (NUM_IN + 63) // 64 - 1)
    return sums


@gluon.jit
def _halves(numbers, WIDTH: gl.constexpr):
    """The columns of the first half, and those of the second."""
    return gl.split(gl.permute(gl.reshape(numbers, [64, 2, WIDTH]), [0, 2, 1]))


@gluon.jit
def _store(
    staged, numbers, result, targets, is_row, column,
    NUM_COLUMNS: gl.constexpr, WIDTH: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Write 64 rows to where they belong in `result`; through shared memory, so that lines are whole."""
    staged.store(numbers)
    thread_barrier()
    columns = column + gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    pointers = result + gl.expand_dims(targets * NUM_COLUMNS, 1) + gl.expand_dims(columns, 0)
    is_there = gl.expand_dims(is_row, 1) & gl.expand_dims(columns < NUM_COLUMNS, 0)
    gl.store(pointers, staged.load(LAYOUT), mask=is_there)
    thread_barrier()


@gluon.jit
def _targets(order, first_place, end, IS_FIRST: gl.constexpr, LAYOUT: gl.constexpr):
    """The rows of `result` that 64 places are written to, and which of them are there."""
    places = first_place + gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    is_place = places < end
    if IS_FIRST:
        return places.to(gl.int64), is_place
    else:
        return gl.load(order + places, mask=is_place, other=0).to(gl.int64), is_place


@gluon.jit
def _multiply_tile(
    buffers, weights, staged, number, order, result, first_place, end, column,
    NUM_COLUMNS: gl.constexpr, NUM_IN: gl.constexpr, HALF: gl.constexpr, IS_FIRST: gl.constexpr,
    WIDTH: gl.constexpr, SUMS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    rows, _, ready, free = buffers
    targets, is_row = _targets(order, first_place, end, IS_FIRST, LAYOUT)
    sums = _sums(rows, weights, ready, free, number, NUM_IN, HALF, IS_FIRST, WIDTH, SUMS)
    if IS_FIRST:
        gate, up = _halves(sums, WIDTH // 2)
        numbers = let_through(gate.to(gl.bfloat16), up.to(gl.bfloat16))
        _store(staged, numbers, result, targets, is_row, column, NUM_COLUMNS, WIDTH // 2, LAYOUT)
    elif WIDTH == 256:
        halves = _halves(sums.to(gl.bfloat16), 128)
        for half in gl.static_range(2):
            first_column = column + half * 128
            _store(staged, halves[half], result, targets, is_row, first_column, NUM_COLUMNS, 128, LAYOUT)
    else:
        _store(staged, sums.to(gl.bfloat16), result, targets, is_row, column, NUM_COLUMNS, 128, LAYOUT)


@gluon.jit
def _multiply(
    buffers, turns, staged, order, result,
    NUM_OUT: gl.constexpr, NUM_IN: gl.constexpr, HALF: gl.constexpr, IS_FIRST: gl.constexpr,
):  # fmt: skip
    """64 pairs of every tile: the first of them, or the second."""
    _, weights, ready, free = buffers
    NUM_COLUMNS: gl.constexpr = NUM_OUT // 2 if IS_FIRST else NUM_OUT
    NUM_STEPS: gl.constexpr = (NUM_IN + 63) // 64
    wide_weights = weights._reinterpret(gl.bfloat16, [STAGES, 256, 64], WIDE_TILE)
    narrow_weights = weights._reinterpret(gl.bfloat16, [STAGES * 2, 128, 64], NARROW_TILE)
    number = 0
    num_told = 0
    first_place, end, tile = told(turns, num_told)
    while end > 0:
        own_place = first_place + HALF * 64
        column = tile * (128 if IS_FIRST else 256)
        if own_place < end:
            if tile < num_wide(NUM_OUT):
                _multiply_tile(
                    buffers, wide_weights, staged, number, order, result, own_place, end, column,
                    NUM_COLUMNS, NUM_IN, HALF, IS_FIRST, 256, WIDE_SUMS, BY_128,
                )  # fmt: skip
            elif IS_FIRST:
                _multiply_tile(
                    buffers, narrow_weights, staged._reinterpret(gl.bfloat16, [2, 64, 64], TILE).index(0), number,
                    order, result, own_place, end, column,
                    NUM_COLUMNS, NUM_IN, HALF, IS_FIRST, 128, NARROW_SUMS, BY_64,
                )  # fmt: skip
            else:
                _multiply_tile(
                    buffers, narrow_weights, staged, number, order, result, own_place, end, column,
                    NUM_COLUMNS, NUM_IN, HALF, IS_FIRST, 128, NARROW_SUMS, BY_128,
                )  # fmt: skip
        else:
            for idle in range(number, number + NUM_STEPS):
                mbarrier.wait(ready.index(idle % STAGES), idle // STAGES & 1)
                _give_back(free, idle)
        number += NUM_STEPS
        num_told += 1
        first_place, end, tile = told(turns, num_told)


# Not specialized: one kernel serves all steps.
@gluon.jit(do_not_specialize=["num_groups", "first_expert", "num_experts"])
def hopper_kernel(
    source,  # x, or tiles of the hidden activations
    weight_tiles,
    order,
    table,
    taken,  # the number of tiles that programs took, beyond the first of each; zero before and after
    result,
    num_groups,
    first_expert,
    num_experts,
    NUM_OUT: gl.constexpr,
    NUM_IN: gl.constexpr,
    NUM_CHOSEN: gl.constexpr,
    IS_FIRST: gl.constexpr,
    IS_DEPENDENT: gl.constexpr,
):
    rows = gl.allocate_shared_memory(gl.bfloat16, [STAGES * 2, 64, 64], TILE)
    weights = gl.allocate_shared_memory(gl.bfloat16, [STAGES * 4, 64, 64], TILE)
    first_staged = gl.allocate_shared_memory(gl.bfloat16, [64, 128], STAGED)
    second_staged = gl.allocate_shared_memory(gl.bfloat16, [64, 128], STAGED)
    # Copies of the weight and of the pairs arrive apart; those of threads, once for each.
    buffers = (rows, weights, barriers(STAGES, 129 if IS_FIRST else 2), barriers(STAGES, 2))
    turns = make_turns()
    # Before the other partitions begin, which read what kernels before this one wrote.
    start_after_previous(IS_DEPENDENT)
    first_group, num_own = groups_of(table, num_groups, first_expert, num_experts)
    gl.warp_specialize(
        [
            (
                _load,
                (buffers, turns, source, weight_tiles, order, table, taken, first_group, num_own, first_expert,
                 NUM_OUT, NUM_IN, NUM_CHOSEN, IS_FIRST),
            ),
            (_multiply, (buffers, turns, first_staged, order, result, NUM_OUT, NUM_IN, 0, IS_FIRST)),
            (_multiply, (buffers, turns, second_staged, order, result, NUM_OUT, NUM_IN, 1, IS_FIRST)),
        ],
        [4, 4],
        [208, 208],
    )  # fmt: skip
