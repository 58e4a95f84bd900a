"""Sums of few rows' products with shuffled codes that come through rings, in Gluon.

A program adds in the order of the kernels that load codes to registers: the same bits. Codes and scales come by another
way:

    memory ──► a warp's ring of STAGES turns ──► registers of this turn ──► sums

As many turns as a ring holds, but one, are on their way before the kernel waits for the one before it: while others
norm and attend, the multiprocessors already read what comes next. And registers need not hold what is on its way, so
that more programs fit on a multiprocessor: all of a product's, at best.

What a warp multiplies, its own threads have copied: a thread its codes, and the threads of a warp each other's scales
(`own_copies.py`). So no warp waits for another before all of them are done, and a turn costs as little as its addresses
do.

At the end the warps that divided inputs leave their sums in shared memory, once, and each then adds some of them.
"""

from facet.kernels.quantized.shuffled.language import allocate_shared_memory, gl, gluon, thread_barrier
from facet.kernels.quantized.shuffled.own_copies import load_sums_at, shared_memory, store_sums_at, wait_for_warp
from facet.kernels.quantized.shuffled.tiles import axis_of_three

BLOCK_BYTES = gl.constexpr(1152)  # 1024 of codes, then scales


@gluon.jit
def make_rings(NUM_BYTES: gl.constexpr, NUM_WARPS: gl.constexpr):
    """The address of so many bytes of shared memory, for what PTX addresses. Something is stored to the row behind
    them, or the compiler would leave them out."""
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ROW: gl.constexpr = gl.BlockedLayout([1], [32], [NUM_WARPS], [0])
    reserved = allocate_shared_memory(gl.int32, [NUM_BYTES // 128 + 1, 32], PLAIN)
    reserved.index(NUM_BYTES // 128).store(gl.zeros([32], gl.int32, ROW))
    return shared_memory()


@gluon.jit
def divide_product(
    num_tiles, num_blocks, TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr
):  # fmt: skip
    """(number of a thread in its warp, of the warp, of the warp among those that divide inputs, and of turns; the
    program's first tile, the numbers of a warp's tiles, and those of the tiles to read)."""
    NUM_WARPS: gl.constexpr = NUM_OUT_WARPS * NUM_IN_WARPS
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [32, 1, 1], [NUM_WARPS, 1, 1], [2, 1, 0])
    first_tile = gl.program_id(0) * (TILES * NUM_OUT_WARPS)
    num_turns = gl.cdiv(num_blocks, NUM_IN_WARPS)
    thread = axis_of_three(32 * NUM_WARPS, 0, SINGLES)
    tile = axis_of_three(TILES, 1, SINGLES)
    lane, warp = thread % 32, thread // 32
    in_warp = warp // NUM_OUT_WARPS
    # Beyond the last tile that one is read again, which needs no mask; the store drops the result.
    read_tile = gl.minimum(first_tile + warp % NUM_OUT_WARPS * TILES + tile, num_tiles - 1)
    return lane, warp, in_warp, num_turns, first_tile, tile, read_tile


@gluon.jit
def next_offset(offset, STEP: gl.constexpr, STAGES: gl.constexpr):
    return gl.where(offset == STEP * (STAGES - 1), 0, offset + STEP)


@gluon.jit
def add_turns(
    sums,
    copied,  # what COPY takes
    own,  # places in rings, of the first turn
    inputs,
    nothing,  # words of inputs before there are any
    num_turns,
    COPY: gl.constexpr,  # starts the copies of a turn
    LOAD: gl.constexpr,  # inputs of a turn
    ADD: gl.constexpr,  # the products of a turn
    FORMAT: gl.constexpr,  # what these know codes by
    STEP: gl.constexpr,  # bytes of a turn of a warp
    STAGES: gl.constexpr,
    IS_AHEAD: gl.constexpr,  # inputs of a turn are loaded before the turn ahead of it is multiplied, not after
):
    """Sums plus the products of all turns, of which all that a ring holds but one are on their way."""
    even_x = LOAD(nothing, inputs, 0, num_turns, FORMAT)
    odd_x = nothing
    # Where a turn lies, and the one before it, into whose place another is copied.
    offset, before = 0, (STAGES - 1) * STEP
    for turn in range(0, num_turns, 2):
        if IS_AHEAD:
            odd_x = LOAD(odd_x, inputs, turn + 1, num_turns, FORMAT)
        # The warp's copies have come, and it has done with the turn before.
        wait_for_warp(STAGES - 2)
        COPY(copied, before, turn + (STAGES - 1), FORMAT)
        sums = ADD(sums, own, offset, even_x, FORMAT)
        if IS_AHEAD:
            even_x = LOAD(even_x, inputs, turn + 2, num_turns, FORMAT)
        else:
            odd_x = LOAD(even_x, inputs, turn + 1, num_turns, FORMAT)
        before, offset = offset, next_offset(offset, STEP, STAGES)
        if turn + 1 < num_turns:
            wait_for_warp(STAGES - 2)
            COPY(copied, before, turn + STAGES, FORMAT)
            sums = ADD(sums, own, offset, odd_x, FORMAT)
        if not IS_AHEAD:
            even_x = LOAD(odd_x, inputs, turn + 2, num_turns, FORMAT)
        before, offset = offset, next_offset(offset, STEP, STAGES)
    wait_for_warp(0)
    return sums


@gluon.jit
def sums_of_all(
    sums, memory, warp, tile, lane, first_tile,
    TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr,
):  # fmt: skip
    """(sums of the warps that share outputs, tile, g, first row): each [threads of NUM_OUT_WARPS * TILES]."""
    NUM_PLACES: gl.constexpr = 32 * NUM_OUT_WARPS * TILES
    # Threads that add what several warps left load it from other banks.
    STRIDE: gl.constexpr = 16 * NUM_PLACES + 16 * max(1, 8 // NUM_IN_WARPS)
    ADDED: gl.constexpr = gl.BlockedLayout(
        [1, 1], [NUM_IN_WARPS, 32 // NUM_IN_WARPS], [1, NUM_OUT_WARPS * NUM_IN_WARPS], [0, 1]
    )
    place = (warp % NUM_OUT_WARPS * TILES + tile) * 32 + lane
    store_sums_at(memory + warp // NUM_OUT_WARPS * STRIDE + place * 16, sums)
    thread_barrier()
    in_warp = gl.expand_dims(gl.arange(0, NUM_IN_WARPS, gl.SliceLayout(1, ADDED)), 1)
    place = gl.arange(0, NUM_PLACES, gl.SliceLayout(0, ADDED))
    sum_0, sum_1, sum_2, sum_3 = load_sums_at(memory + in_warp * STRIDE + gl.expand_dims(place, 0) * 16)
    added = gl.sum(sum_0, 0), gl.sum(sum_1, 0), gl.sum(sum_2, 0), gl.sum(sum_3, 0)
    return added, first_tile + place // 32, place % 32 // 4, place % 4 * 2
