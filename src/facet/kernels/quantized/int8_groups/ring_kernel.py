"""Products of up to 16 rows with matrices of shuffled 8-bit codes that come through rings, in Gluon.

A program multiplies as those of `few_rows_kernel.py` do, and adds in their order: the same bits. Codes and scales come
through shared memory, as those of four bits do: `int4/ring_kernel.py` says how and why. A block takes as much of it:
two chunks of codes, then for each pair of outputs g and g + 8 four words, two of scales and two of coarse ones.
"""

from facet.kernels.quantized.int4.ring_kernel import BLOCK_BYTES, next_offset, sums_of_all
from facet.kernels.quantized.int4.tiles import store_at, store_sums
from facet.kernels.quantized.int8_groups.language import (
    allocate_shared_memory,
    commit_own_copies,
    copy_own_block,
    gl,
    gluon,
    let_next_start,
    load_own_words,
    load_two_chunks,
    shared_memory,
    thread_barrier,
    wait_for_previous,
    wait_for_warp,
)
from facet.kernels.quantized.int8_groups.tiles import (
    BLOCK_IN,
    CHUNK,
    WORDS,
    add_chunk,
    factors_of,
    offset_of_coarse,
    offset_of_scales,
    words_of_tile,
)


@gluon.jit
def copy_turn(
    places, offset, turn, in_warp, num_blocks,
    NUM_IN_WARPS: gl.constexpr, GROUPS: gl.constexpr, BLOCKS_OF_SCALE: gl.constexpr, LEVELS: gl.constexpr,
):  # fmt: skip
    """Starts the copies of the blocks of a turn; after the last, of zeros: scales of zero."""
    own, own_scales, codes, scales, is_coarse = places
    block = turn * NUM_IN_WARPS + in_warp
    scale_place = offset_of_scales(block, GROUPS, BLOCKS_OF_SCALE, LEVELS)
    if LEVELS > 0:
        scale_place = gl.where(is_coarse, offset_of_coarse(block, LEVELS), scale_place)
    copy_own_block(
        own + offset,
        codes + turn * (NUM_IN_WARPS * WORDS),
        own_scales + offset,
        scales + scale_place,
        block + 0 * own < num_blocks,
    )
    commit_own_copies()


@gluon.jit
def load_inputs(
    before, inputs, turn, num_turns, num_in,
    NUM_IN_WARPS: gl.constexpr, HAS_TAIL: gl.constexpr, IN_SIXTEENS: gl.constexpr,
):  # fmt: skip
    """Those of a turn, chunk by chunk; after the last turn, and of rows that are not there, some that were before."""
    x_places, is_row, place = inputs
    if HAS_TAIL:
        # Zeros, because what they are multiplied by may be scales of zero.
        left = num_in - turn * (NUM_IN_WARPS * BLOCK_IN) - place
        first_live, second_live = is_row & (left > 0), is_row & (left > CHUNK)
    else:
        # Rows that are not there may be anything: products keep rows apart.
        first_live = is_row & (turn < num_turns)
        second_live = first_live
    x_places += turn * (NUM_IN_WARPS * BLOCK_IN // 2)
    return load_two_chunks(before, x_places, first_live, second_live, HAS_TAIL, IN_SIXTEENS)


@gluon.jit
def add_turn(
    sums, own, own_scales, offset, chunks,
    SCALE_DTYPE: gl.constexpr, LEVELS: gl.constexpr, IS_NARROW: gl.constexpr,
):  # fmt: skip
    """Sums plus the products of the blocks of a turn."""
    codes = (load_own_words(own + offset), load_own_words(own + (offset + 512)))
    words = load_own_words(own_scales + (offset + 1024))
    factors = (words[2], words[3])
    if LEVELS > 0:
        factors = factors_of(words[2], words[3], LEVELS)
    for chunk in gl.static_range(2):
        sums = add_chunk(sums, codes[chunk], words[chunk], factors, chunks[chunk], SCALE_DTYPE, LEVELS, IS_NARROW)
    return sums


# One compilation serves all row counts, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["gated_stride", "num_rows", "num_tiles", "num_blocks", "num_in"])
def ring_kernel(
    x,  # int32: two bfloat16 numbers each
    codes,
    scales,
    gated,
    output,
    x_stride,
    gated_stride,
    num_rows,
    num_tiles,
    num_blocks,
    num_in,
    IS_GATED: gl.constexpr,  # GeGLU
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    SCALE_DTYPE: gl.constexpr,  # of scales that have no coarse ones
    GROUPS: gl.constexpr,  # words of scales of a block
    BLOCKS_OF_SCALE: gl.constexpr,  # that share them
    LEVELS: gl.constexpr,  # words of coarse scales. 1: groups have 16 inputs; 2: there are minimums
    IS_NARROW: gl.constexpr,  # codes have 64 added
    TILES: gl.constexpr,
    ROW_TILES: gl.constexpr,
    NUM_OUT_WARPS: gl.constexpr,
    NUM_IN_WARPS: gl.constexpr,
    STAGES: gl.constexpr,
    IS_AHEAD: gl.constexpr,  # inputs of a turn are loaded before the turn ahead of it is multiplied, not after
    HAS_TAIL: gl.constexpr,  # inputs do not go evenly into the blocks of a turn
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    NUM_WARPS: gl.constexpr = NUM_OUT_WARPS * NUM_IN_WARPS
    STEP: gl.constexpr = TILES * BLOCK_BYTES
    IN_SIXTEENS: gl.constexpr = LEVELS == 1
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
    read_tile = gl.minimum(first_tile + warp % NUM_OUT_WARPS * TILES + tile, num_tiles - 1).to(gl.int64)
    ring = memory + warp * (STAGES * STEP) + tile * BLOCK_BYTES
    own, own_scales = ring + lane * 16, ring + lane // 4 * 16
    # A thread copies one of the four words of scales of a pair of outputs. Groups may be wider than a chunk.
    member, number, is_coarse = lane // 4, lane % 4, lane % 4 >= 2
    word = member * GROUPS + number % 2 * GROUPS // 2
    if LEVELS > 0:
        word = gl.where(is_coarse, member * LEVELS + number % 2 * (LEVELS - 1), word)
    num_words = words_of_tile(num_blocks, GROUPS, BLOCKS_OF_SCALE, LEVELS)
    places = (
        own,
        ring + lane * 4,
        codes + (read_tile * num_blocks + in_warp) * WORDS + lane * 4,
        scales + read_tile * num_words + word,
        is_coarse,
    )
    for turn in gl.static_range(STAGES - 1):
        copy_turn(
            places, turn * STEP, turn, in_warp, num_blocks, NUM_IN_WARPS, GROUPS, BLOCKS_OF_SCALE, LEVELS
        )  # fmt: skip
    wait_for_previous(IS_DEPENDENT)

    row_tile = gl.expand_dims(
        gl.expand_dims(gl.arange(0, ROW_TILES, gl.SliceLayout(0, gl.SliceLayout(1, SINGLES))), 0), 1
    )
    row = lane // 4 + 8 * row_tile
    place = in_warp * BLOCK_IN  # of the first input of a block
    own_inputs = lane % 4 * 2 if IN_SIXTEENS else lane % 4 * 4  # in words of two
    inputs = (x + row * x_stride + place // 2 + own_inputs, row < num_rows, place)
    zeros = gl.zeros([32 * NUM_WARPS, TILES, ROW_TILES], gl.float32, SINGLES)
    sums = (zeros, zeros, zeros, zeros)
    nothing = gl.zeros([32 * NUM_WARPS, 1, ROW_TILES], gl.int32, SINGLES)
    nothing = (nothing, nothing, nothing, nothing)
    nothing = (nothing, nothing)
    even_x = load_inputs(nothing, inputs, 0, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL, IN_SIXTEENS)
    odd_x = nothing
    # Where a turn lies, and the one before it, into whose place another is copied.
    offset, before = 0, (STAGES - 1) * STEP
    for turn in range(0, num_turns, 2):
        if IS_AHEAD:
            odd_x = load_inputs(odd_x, inputs, turn + 1, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL, IN_SIXTEENS)
        # The warp's copies have come, and it has done with the turn before.
        wait_for_warp(STAGES - 2)
        copy_turn(
            places, before, turn + (STAGES - 1), in_warp, num_blocks, NUM_IN_WARPS, GROUPS, BLOCKS_OF_SCALE, LEVELS
        )  # fmt: skip
        sums = add_turn(sums, own, own_scales, offset, even_x, SCALE_DTYPE, LEVELS, IS_NARROW)
        if IS_AHEAD:
            even_x = load_inputs(even_x, inputs, turn + 2, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL, IN_SIXTEENS)
        else:
            odd_x = load_inputs(even_x, inputs, turn + 1, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL, IN_SIXTEENS)
        before, offset = offset, next_offset(offset, STEP, STAGES)
        if turn + 1 < num_turns:
            wait_for_warp(STAGES - 2)
            copy_turn(
                places, before, turn + STAGES, in_warp, num_blocks, NUM_IN_WARPS, GROUPS, BLOCKS_OF_SCALE, LEVELS
            )  # fmt: skip
            sums = add_turn(sums, own, own_scales, offset, odd_x, SCALE_DTYPE, LEVELS, IS_NARROW)
        if not IS_AHEAD:
            even_x = load_inputs(odd_x, inputs, turn + 2, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL, IN_SIXTEENS)
        before, offset = offset, next_offset(offset, STEP, STAGES)
    wait_for_warp(0)
    if NUM_IN_WARPS == 1:
        store_sums(
            sums, None, first_tile, 0, gated, output, gated_stride, num_rows, num_tiles,
            IS_GATED, HAS_GATED_INPUT, TILES, ROW_TILES, NUM_OUT_WARPS, 1,
        )  # fmt: skip
    else:
        thread_barrier()  # sums take the place of rings
        added, both, member, row_o = sums_of_all(
            sums, memory, warp, tile * ROW_TILES + row_tile, lane, 0, TILES * ROW_TILES, NUM_OUT_WARPS, NUM_IN_WARPS
        )
        store_at(
            added, None, first_tile + both // ROW_TILES, member, 8 * (both % ROW_TILES) + row_o, gated, output,
            gated_stride, num_rows, num_tiles, IS_GATED, HAS_GATED_INPUT,
        )  # fmt: skip
