"""Products of tens of rows with matrices of shuffled codes, in Gluon, by the large products of Hopper: what kernels for
4-bit and 8-bit codes share.

A warp takes a tile of 16 outputs and brings codes to bfloat16 values, scales included, in the registers from which
`wgmma` takes its left operand: for a warp these are the registers of `mma.sync`, for which codes were shuffled. The
right operand is rows of x in shared memory, the same for all warps. Codes, scales and x come to shared memory by copies
that run some turns ahead. A *turn* is 128 inputs of a tile group, which has a tile for every warp, or 256. Tensor cores
multiply by 64 of them while the next 64 become values: these have registers of their own.

Such a program takes a whole multiprocessor, or half of one, and tiles rarely go evenly into those. So programs divide
turns, not tiles: each has as many of them as the others, of one tile group after another, wherever its first one lies.
Where programs share a tile group, the last to arrive adds what each of them has, in their order.

A thread's inputs are neighbours in the matrix, but not in what tensor cores take its registers for: rows of x are put
in the order of codes first (`wide_launch.py`).
"""

from facet.kernels.quantized.shuffled.language import (
    allocate_shared_memory,
    commit_copies,
    copy_to_shared,
    fence_async_shared,
    gl,
    gluon,
    thread_barrier,
    wait_for_copies,
    wait_for_previous,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from facet.kernels.quantized.shuffled.tiles import opened

PRODUCT_IN = gl.constexpr(64)


@gluon.jit
def multiply_turns(
    x,  # [groups of rows, turns, rows, inputs of a turn], in the order of codes
    sources,  # of copies, which COPY starts,
    targets,  # and where they go
    factors,  # of whole rows; None: there are none
    gated,
    output,
    partial_sums,  # two of each program
    arrivals,
    gated_stride,
    num_rows,
    num_tiles,
    num_blocks,
    num_turns,  # of a tile group
    IS_GATED: gl.constexpr,  # GeGLU
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    COPY: gl.constexpr,  # starts the copies of a turn
    LOAD: gl.constexpr,  # brings inputs of two products to registers, as far as it takes few
    VALUES: gl.constexpr,  # makes values of those of one
    FORMAT: gl.constexpr,  # what these know codes by
    ROWS: gl.constexpr,
    TILES: gl.constexpr,  # of 16 outputs; a warp for each
    STAGES: gl.constexpr,  # turns in shared memory
    PRODUCTS: gl.constexpr,  # of a turn, an even number
    IS_DEPENDENT: gl.constexpr,
):
    """All that a program has to do."""
    TURN_IN: gl.constexpr = PRODUCTS * PRODUCT_IN
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [TILES, 1], [16, ROWS, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    INPUTS: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [TILES, 1], [1, 0])
    TILE_OF_X: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, TURN_IN], gl.bfloat16)

    # Programs of the same codes and other rows run side by side: one reads codes from memory, others from the cache.
    num_row_groups = gl.cdiv(num_rows, ROWS)
    row_group = gl.program_id(0) % num_row_groups
    program = gl.program_id(0) // num_row_groups
    num_programs = gl.num_programs(0) // num_row_groups
    num_all = gl.cdiv(num_tiles, TILES) * num_turns
    first, end = program * num_all // num_programs, (program + 1) * num_all // num_programs

    SIZE_OF_X: gl.constexpr = ROWS * TURN_IN
    row = gl.arange(0, ROWS, gl.SliceLayout(1, INPUTS)) * TURN_IN
    column = gl.arange(0, TURN_IN, gl.SliceLayout(0, INPUTS))
    place_in_x = gl.expand_dims(row, 1) + gl.expand_dims(column, 0)
    x += row_group * num_turns * SIZE_OF_X
    x_tiles = allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, TURN_IN], TILE_OF_X)

    # Codes and scales are on their way while x is still being computed.
    ahead_group, ahead_turn = first // num_turns, first % num_turns
    for ahead in gl.static_range(STAGES - 1):
        if first + ahead < end:
            COPY(sources, targets, ahead, ahead_group, ahead_turn, num_tiles, num_blocks, FORMAT, TILES)
        ahead_group, ahead_turn = next_turn(ahead_group, ahead_turn, num_turns)
    wait_for_previous(IS_DEPENDENT)
    for ahead in gl.static_range(STAGES - 1):
        if first + ahead < end:
            copy_to_shared(x_tiles.index(ahead), x + (first + ahead) % num_turns * SIZE_OF_X + place_in_x)
        commit_copies()
    wait_for_copies(STAGES - 2)
    thread_barrier()
    fence_async_shared()

    # Tensor cores multiply by some inputs while the next come to other registers.
    for group in range(first // num_turns, (end - 1) // num_turns + 1):
        first_of_group, end_of_group = gl.maximum(first, group * num_turns), gl.minimum(end, (group + 1) * num_turns)
        stage = (first_of_group - first) % STAGES
        before = (first_of_group - first + (STAGES - 1)) % STAGES
        held = LOAD(targets, stage, 0, FORMAT, TILES)
        even = VALUES(held, targets, stage, 0, FORMAT, TILES, LEFT)
        odd = even
        sums = gl.zeros([16 * TILES, ROWS], gl.float32, SUMS)
        for turn in range(first_of_group, end_of_group):
            for number in gl.static_range(0, PRODUCTS, 2):
                product = multiply(sums, even, x_tiles.index(stage), number)
                sums, _ = warpgroup_mma_wait(1, deps=(product, odd))
                odd = VALUES(held, targets, stage, number + 1, FORMAT, TILES, LEFT)
                product = multiply(sums, odd, x_tiles.index(stage), number + 1)
                sums, _ = warpgroup_mma_wait(1, deps=(product, even))
                if number + 2 < PRODUCTS:
                    held = LOAD(targets, stage, number + 2, FORMAT, TILES)
                    even = VALUES(held, targets, stage, number + 2, FORMAT, TILES, LEFT)
            # The barrier also says that everyone has done with the turn before, into whose place another is copied.
            # With the fence in front of it there would be one more barrier: the compiler's own, after the wait.
            wait_for_copies(STAGES - 3)
            thread_barrier()
            fence_async_shared()
            if turn + (STAGES - 1) < end:
                COPY(sources, targets, before, ahead_group, ahead_turn, num_tiles, num_blocks, FORMAT, TILES)
                copy_to_shared(x_tiles.index(before), x + ahead_turn * SIZE_OF_X + place_in_x)
            commit_copies()
            ahead_group, ahead_turn = next_turn(ahead_group, ahead_turn, num_turns)
            before, stage = stage, gl.where(stage + 1 == STAGES, 0, stage + 1)
            held = LOAD(targets, stage, 0, FORMAT, TILES)
            even = VALUES(held, targets, stage, 0, FORMAT, TILES, LEFT)
        sums, _ = warpgroup_mma_wait(0, deps=(sums, odd))
        is_last = True
        if end_of_group - first_of_group < num_turns:
            sums, is_last = add_up(
                sums, partial_sums, arrivals, group, row_group, program, group * num_turns < first, num_all, num_turns,
                num_programs, num_row_groups, ROWS, TILES,
            )  # fmt: skip
        if is_last:
            if factors is not None:
                output_in_tile = group * (16 * TILES) + gl.arange(0, 16 * TILES, gl.SliceLayout(1, SUMS))
                sums *= gl.expand_dims(gl.load(factors + gl.minimum(output_in_tile, num_tiles * 16 - 1)), 1)
            finish(
                sums, row_group * ROWS, group * TILES, gated, output, gated_stride, num_rows, num_tiles,
                IS_GATED, HAS_GATED_INPUT, ROWS, TILES,
            )  # fmt: skip
    wait_for_copies(0)


@gluon.jit
def load_pair(words, TILES: gl.constexpr, SINGLES: gl.constexpr):
    """[tiles, g, 2] of shared memory, as two of [tiles, g, 1]."""
    PAIRS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 2], [1, 8, 4, 1], [TILES, 1, 1, 1], [3, 2, 1, 0])
    first, second = gl.split(gl.expand_dims(words.load(gl.SliceLayout(2, PAIRS)), 2))
    first = gl.convert_layout(first, SINGLES, assert_trivial=True)
    second = gl.convert_layout(second, SINGLES, assert_trivial=True)
    return first, second


@gluon.jit
def left_operand(first, second, TILES: gl.constexpr, LEFT: gl.constexpr):
    """[16 outputs of each tile, inputs of a product], of the values of two chunks of 32 inputs: [tiles, g, t,
    sides, halves of a product's inputs, products of a chunk, halves of a tile]."""
    # [tiles, halves, g, chunks, products of a chunk, halves of its inputs, t, sides]
    values = gl.permute(gl.join(first, second), (0, 6, 1, 7, 5, 4, 2, 3))
    return gl.convert_layout(gl.reshape(values, [16 * TILES, PRODUCT_IN]), LEFT, assert_trivial=True)


@gluon.jit
def multiply(sums, values, x, NUMBER: gl.constexpr):
    """Starts one of the products of a turn."""
    return warpgroup_mma(values, x.slice(NUMBER * PRODUCT_IN, PRODUCT_IN, 1).permute((1, 0)), sums, is_async=True)


@gluon.jit
def next_turn(group, turn, num_turns):
    """(Tile group, turn) of the turn that follows: all turns of a tile group, then those of the next."""
    is_last = turn + 1 == num_turns
    return gl.where(is_last, group + 1, group), gl.where(is_last, 0, turn + 1)


@gluon.jit
def add_up(
    sums, partial_sums, arrivals, group, row_group, program, starts_late, num_all, num_turns, num_programs,
    num_row_groups, ROWS: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """Sums of a tile group that programs share, where all of them have arrived, and whether they have.

    Each of them stores its own. All but the first of them started late. A program has two places, because it may share
    two tile groups: the one that it started late, and one at its end.
    """
    SIZE: gl.constexpr = 16 * TILES * ROWS
    # At a time, as far as there are registers for what is on its way.
    NUM: gl.constexpr = 2 if ROWS <= 64 else 1
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [TILES, 1], [16, ROWS, 16])
    output_in_tile = gl.arange(0, 16 * TILES, gl.SliceLayout(1, SUMS))
    row_in_tile = gl.arange(0, ROWS, gl.SliceLayout(0, SUMS))
    places = partial_sums + (gl.expand_dims(output_in_tile * ROWS, 1) + gl.expand_dims(row_in_tile, 0))
    # The programs that have its first turn and its last: the largest whose own first turn comes no later.
    earliest = ((group * num_turns + 1) * num_programs - 1) // num_all
    latest = ((group + 1) * num_turns * num_programs - 1) // num_all
    own = (program * num_row_groups + row_group) * 2 + gl.where(starts_late, 0, 1)
    gl.store(places + own.to(gl.int64) * SIZE, sums)
    # As in arrivals.py.
    thread_barrier()
    counter = arrivals + group * num_row_groups + row_group
    is_last = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == latest - earliest
    if is_last:
        gl.store(counter, 0)
        sums = gl.zeros([16 * TILES, ROWS], gl.float32, SUMS)
        for each in range(earliest, latest + 1, NUM):
            theirs = (each * num_row_groups + row_group) * 2 + gl.where(each == earliest, 1, 0)
            some = gl.load(places + theirs.to(gl.int64) * SIZE, cache_modifier=".cg")
            if NUM == 2:
                theirs = (gl.minimum(each + 1, latest) * num_row_groups + row_group) * 2
                others = gl.load(places + theirs.to(gl.int64) * SIZE, cache_modifier=".cg")
                sums += some
                some = gl.where(each < latest, others, 0.0)
            sums += some
    return sums, is_last


@gluon.jit
def finish(
    sums, first_row, first_tile, gated, output, gated_stride, num_rows, num_tiles,
    IS_GATED: gl.constexpr, HAS_GATED_INPUT: gl.constexpr, ROWS: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """Rounds, applies the activation, stores: rows of neighbouring outputs."""
    WIDTH: gl.constexpr = 8 if IS_GATED else 16
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // (WIDTH * TILES), WIDTH * TILES // 8], [TILES, 1], [1, 0])
    rounded = sums.to(gl.bfloat16)
    if IS_GATED:
        halves = gl.permute(gl.reshape(rounded, [TILES, 2, 8, ROWS]), (0, 2, 3, 1))
        gate, up = gl.split(halves)
        rounded = gl.reshape(opened(gate, up), [8 * TILES, ROWS])
    result = gl.convert_layout(gl.permute(rounded, (1, 0)), OUT)
    num_out = num_tiles * WIDTH
    row = gl.expand_dims(first_row + gl.arange(0, ROWS, gl.SliceLayout(1, OUT)), 1)
    column = gl.expand_dims(first_tile * WIDTH + gl.arange(0, WIDTH * TILES, gl.SliceLayout(0, OUT)), 0)
    is_there = (row < num_rows) & (column < num_out)
    if HAS_GATED_INPUT:
        result = opened(result, gl.load(gated + row * gated_stride + column, mask=is_there, other=0.0))
    gl.store(output + row * num_out + column, result, mask=is_there)
