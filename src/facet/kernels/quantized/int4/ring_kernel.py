"""Products of up to 8 rows with matrices of shuffled 4-bit codes that come through rings, in Gluon.

A program multiplies as those of `few_rows_kernel.py` do, and adds in their order: the same bits. Codes and scales come
by another way:

    memory ──► a warp's ring of STAGES turns ──► registers of this turn ──► sums

As many turns as a ring holds, but one, are on their way before the kernel waits for the one before it: while others
norm and attend, the multiprocessors already read what comes next. And registers need not hold what is on its way, so
that more programs fit on a multiprocessor: all of a product's, at best.

What a warp multiplies, its own threads have copied: a thread its codes, and the threads of a warp each other's scales.
So no warp waits for another before all of them are done, and a turn costs as little as its addresses do. Gluon knows no
such copies, and would put barriers between them and what reads them; `language.py` has them in PTX.

At the end the warps that divided inputs leave their sums in shared memory, once, and each then adds some of them.
"""

from facet.kernels.quantized.int4.language import (
    allocate_shared_memory,
    commit_own_copies,
    copy_own_block,
    copy_own_coarse,
    gl,
    gluon,
    let_next_start,
    load_chunks,
    load_own_pair,
    load_own_words,
    load_sums_at,
    shared_memory,
    store_sums_at,
    thread_barrier,
    wait_for_previous,
    wait_for_warp,
)
from facet.kernels.quantized.int4.tiles import (
    BLOCK_IN,
    CHUNK,
    WORDS,
    add_chunk,
    both_coarse,
    small_scale_words,
    store_at,
    store_sums,
)

BLOCK_BYTES = gl.constexpr(1152)  # codes of outputs g, of outputs g + 8, scales of both
COARSE_BYTES = gl.constexpr(64)  # behind them, where scales are uint8


@gluon.jit
def copy_turn(
    places, offset, turn, in_warp, num_blocks, NUM_IN_WARPS: gl.constexpr, GROUPS: gl.constexpr
):  # fmt: skip
    """Starts the copies of the blocks of a turn; after the last, of zeros: scales of zero."""
    own, own_scales, codes, scales, copied_coarse, coarse = places
    block = turn * NUM_IN_WARPS
    is_there = block + in_warp + 0 * own < num_blocks
    copy_own_block(own + offset, codes + block * WORDS, own_scales + offset, scales + block * (8 * GROUPS), is_there)
    if coarse is not None:
        copy_own_coarse(copied_coarse + offset, coarse + (block + in_warp) // 2 * 16, is_there)
    commit_own_copies()


@gluon.jit
def load_inputs(before, inputs, turn, num_turns, num_in, NUM_IN_WARPS: gl.constexpr, HAS_TAIL: gl.constexpr):
    """Those of a turn, chunk by chunk; after the last turn, and of rows that are not there, some that were before."""
    x_places, is_row, place = inputs
    if HAS_TAIL:
        # Zeros, because what they are multiplied by may be scales of zero.
        left = num_in - turn * (NUM_IN_WARPS * BLOCK_IN) - place
        is_live = (
            is_row & (left > 0), is_row & (left > CHUNK), is_row & (left > 2 * CHUNK), is_row & (left > 3 * CHUNK)
        )  # fmt: skip
    else:
        # Rows that are not there may be anything: products keep rows apart.
        is_there = is_row & (turn < num_turns)
        is_live = (is_there, is_there, is_there, is_there)
    return load_chunks(before, x_places + turn * (NUM_IN_WARPS * BLOCK_IN // 2), is_live, HAS_TAIL)


@gluon.jit
def add_turn(sums, own, own_scales, own_coarse, offset, chunks, SCALE_DTYPE: gl.constexpr, SINGLES: gl.constexpr):
    """Sums plus the products of the blocks of a turn."""
    upper = load_own_words(own + offset)
    lower = load_own_words(own + (offset + 512))
    scales = load_own_words(own_scales + (offset + 1024))
    zeros = scales[0]
    if gl.float8e4nv == SCALE_DTYPE:
        scales = small_scale_words(scales, SINGLES)
    elif gl.uint8 == SCALE_DTYPE:
        coarse_g, coarse_h = load_own_pair(own_coarse + (offset + BLOCK_BYTES))
        zeros = both_coarse(coarse_g, coarse_h)
    for chunk in gl.static_range(4):
        sums = add_chunk(
            sums, upper[chunk], lower[chunk], scales[chunk], zeros, chunks[chunk], SCALE_DTYPE, False, SINGLES
        )
    return sums


@gluon.jit
def next_offset(offset, STEP: gl.constexpr, STAGES: gl.constexpr):
    return gl.where(offset == STEP * (STAGES - 1), 0, offset + STEP)


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


# One compilation serves all row counts, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["gated_stride", "num_rows", "num_tiles", "num_blocks", "num_in"])
def ring_kernel(
    x,  # int32: two bfloat16 numbers each
    codes,
    scales,
    gated,
    output,
    factors,  # of whole rows; None: there are none
    coarse,  # words of coarse scales and minimums, beside scales of uint8; else None
    x_stride,
    gated_stride,
    num_rows,
    num_tiles,
    num_blocks,
    num_in,
    IS_GATED: gl.constexpr,  # GeGLU
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    SCALE_DTYPE: gl.constexpr,
    GROUPS: gl.constexpr,  # of a block
    TILES: gl.constexpr,
    NUM_OUT_WARPS: gl.constexpr,
    NUM_IN_WARPS: gl.constexpr,
    STAGES: gl.constexpr,
    IS_AHEAD: gl.constexpr,  # inputs of a turn are loaded before the turn ahead of it is multiplied, not after
    HAS_TAIL: gl.constexpr,  # inputs do not go evenly into the blocks of a turn
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    NUM_WARPS: gl.constexpr = NUM_OUT_WARPS * NUM_IN_WARPS
    BYTES: gl.constexpr = BLOCK_BYTES + (COARSE_BYTES if gl.uint8 == SCALE_DTYPE else 0)
    STEP: gl.constexpr = TILES * BYTES
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [32, 1, 1], [NUM_WARPS, 1, 1], [2, 1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ROW: gl.constexpr = gl.BlockedLayout([1], [32], [NUM_WARPS], [0])

    # For what PTX addresses. To the last row something is stored, or there would be no memory.
    reserved = allocate_shared_memory(gl.int32, [STAGES * NUM_WARPS * STEP // 128 + 1, 32], PLAIN)
    reserved.index(STAGES * NUM_WARPS * STEP // 128).store(gl.zeros([32], gl.int32, ROW))
    memory = shared_memory()

    first_tile = gl.program_id(0) * (TILES * NUM_OUT_WARPS)
    num_turns = gl.cdiv(num_blocks, NUM_IN_WARPS)
    thread = gl.expand_dims(
        gl.expand_dims(gl.arange(0, 32 * NUM_WARPS, gl.SliceLayout(1, gl.SliceLayout(2, SINGLES))), 1), 2
    )
    tile = gl.expand_dims(gl.expand_dims(gl.arange(0, TILES, gl.SliceLayout(0, gl.SliceLayout(2, SINGLES))), 0), 2)
    lane, warp = thread % 32, thread // 32
    in_warp = warp // NUM_OUT_WARPS
    # Beyond the last tile that one is read again, which needs no mask; the store drops the result.
    read_tile = gl.minimum(first_tile + warp % NUM_OUT_WARPS * TILES + tile, num_tiles - 1)
    first_block = read_tile.to(gl.int64) * num_blocks + in_warp
    ring = memory + warp * (STAGES * STEP) + tile * BYTES
    own, own_scales, own_coarse = ring + lane * 16, ring + lane // 4 * 16, ring + lane // 4 * 8
    if gl.uint8 == SCALE_DTYPE:
        coarse += read_tile.to(gl.int64) * (gl.cdiv(num_blocks, 2) * 16) + lane % 16
    places = (
        own,
        ring + lane * 4,
        codes + first_block * WORDS + lane * 4,
        # Groups may be wider than a chunk.
        scales + first_block * (8 * GROUPS) + lane // 4 * GROUPS + lane % 4 * GROUPS // 4,
        # Two threads copy the same word.
        ring + lane % 16 * 4,
        coarse,
    )
    for turn in gl.static_range(STAGES - 1):
        copy_turn(places, turn * STEP, turn, in_warp, num_blocks, NUM_IN_WARPS, GROUPS)
    wait_for_previous(IS_DEPENDENT)

    row = lane // 4
    place = in_warp * BLOCK_IN + lane % 4 * 8  # of the first of a thread's eight inputs
    inputs = (x + row * x_stride + place // 2, row < num_rows, place)
    zeros = gl.zeros([32 * NUM_WARPS, TILES, 1], gl.float32, SINGLES)
    sums = (zeros, zeros, zeros, zeros)
    nothing = gl.zeros([32 * NUM_WARPS, 1, 1], gl.int32, SINGLES)
    nothing = (nothing, nothing, nothing, nothing)
    nothing = (nothing, nothing, nothing, nothing)
    even_x = load_inputs(nothing, inputs, 0, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
    odd_x = nothing
    # Where a turn lies, and the one before it, into whose place another is copied.
    offset, before = 0, (STAGES - 1) * STEP
    for turn in range(0, num_turns, 2):
        if IS_AHEAD:
            odd_x = load_inputs(odd_x, inputs, turn + 1, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
        # The warp's copies have come, and it has done with the turn before.
        wait_for_warp(STAGES - 2)
        copy_turn(places, before, turn + (STAGES - 1), in_warp, num_blocks, NUM_IN_WARPS, GROUPS)
        sums = add_turn(sums, own, own_scales, own_coarse, offset, even_x, SCALE_DTYPE, SINGLES)
        if IS_AHEAD:
            even_x = load_inputs(even_x, inputs, turn + 2, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
        else:
            odd_x = load_inputs(even_x, inputs, turn + 1, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
        before, offset = offset, next_offset(offset, STEP, STAGES)
        if turn + 1 < num_turns:
            wait_for_warp(STAGES - 2)
            copy_turn(places, before, turn + STAGES, in_warp, num_blocks, NUM_IN_WARPS, GROUPS)
            sums = add_turn(sums, own, own_scales, own_coarse, offset, odd_x, SCALE_DTYPE, SINGLES)
        if not IS_AHEAD:
            even_x = load_inputs(odd_x, inputs, turn + 2, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
        before, offset = offset, next_offset(offset, STEP, STAGES)
    wait_for_warp(0)
    if NUM_IN_WARPS == 1:
        store_sums(
            sums, factors, first_tile, 0, gated, output, gated_stride, num_rows, num_tiles,
            IS_GATED, HAS_GATED_INPUT, TILES, 1, NUM_OUT_WARPS, 1,
        )  # fmt: skip
    else:
        thread_barrier()  # sums take the place of rings
        added, tile_o, member, row_o = sums_of_all(
            sums, memory, warp, tile, lane, first_tile, TILES, NUM_OUT_WARPS, NUM_IN_WARPS
        )
        store_at(
            added, factors, tile_o, member, row_o, gated, output, gated_stride, num_rows, num_tiles,
            IS_GATED, HAS_GATED_INPUT,
        )  # fmt: skip
