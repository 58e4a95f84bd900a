"""Products of up to 16 rows with matrices of shuffled 8-bit codes that come through rings, in Gluon.

A program multiplies as those of `few_rows_kernel.py` do, and adds in their order: the same bits. `shuffled/rings.py`
says how codes come, and why. A block takes as much of a ring as one of 4-bit codes: two chunks of codes, then for each
pair of outputs g and g + 8 four words, two of scales and two of coarse ones.
"""

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
from facet.kernels.quantized.shuffled.inputs import load_two_chunks
from facet.kernels.quantized.shuffled.language import gl, gluon, let_next_start, thread_barrier, wait_for_previous
from facet.kernels.quantized.shuffled.own_copies import commit_own_copies, copy_own_block, load_own_words
from facet.kernels.quantized.shuffled.rings import (
    BLOCK_BYTES,
    add_turns,
    divide_product,
    make_rings,
    sums_of_all,
)
from facet.kernels.quantized.shuffled.tiles import axis_of_three, store_at, store_sums


@gluon.jit
def copy_turn(copied, offset, turn, FORMAT: gl.constexpr):
    """Starts the copies of the blocks of a turn; after the last, of zeros: scales of zero."""
    GROUPS: gl.constexpr = FORMAT[1]
    BLOCKS_OF_SCALE: gl.constexpr = FORMAT[2]
    LEVELS: gl.constexpr = FORMAT[3]
    NUM_IN_WARPS: gl.constexpr = FORMAT[5]
    own, own_scales, codes, scales, is_coarse, in_warp, num_blocks = copied
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
def load_inputs(before, inputs, turn, num_turns, FORMAT: gl.constexpr):
    """The inputs of a turn, chunk by chunk; after the last turn, and of rows that are not there, some that were
    before."""
    IN_SIXTEENS: gl.constexpr = FORMAT[3] == 1
    NUM_IN_WARPS: gl.constexpr = FORMAT[5]
    HAS_TAIL: gl.constexpr = FORMAT[6]
    x_places, is_row, place, num_in = inputs
    if HAS_TAIL:
        # Zeros, because what they are multiplied by may be scales of zero.
        left = num_in - turn * (NUM_IN_WARPS * BLOCK_IN) - place
        is_live = (is_row & (left > 0), is_row & (left > CHUNK))
    else:
        # Rows that are not there may be anything: products keep rows apart.
        is_there = is_row & (turn < num_turns)
        is_live = (is_there, is_there)
    x_places += turn * (NUM_IN_WARPS * BLOCK_IN // 2)
    return load_two_chunks(before, x_places, is_live, HAS_TAIL, IN_SIXTEENS)


@gluon.jit
def add_turn(sums, places, offset, chunks, FORMAT: gl.constexpr):
    """Sums plus the products of the blocks of a turn."""
    SCALE_DTYPE: gl.constexpr = FORMAT[0]
    LEVELS: gl.constexpr = FORMAT[3]
    IS_NARROW: gl.constexpr = FORMAT[4]
    own, own_scales = places
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
    FORMAT: gl.constexpr = (SCALE_DTYPE, GROUPS, BLOCKS_OF_SCALE, LEVELS, IS_NARROW, NUM_IN_WARPS, HAS_TAIL)
    memory = make_rings(STAGES * NUM_WARPS * STEP, NUM_WARPS)
    lane, warp, in_warp, num_turns, first_tile, tile, read_tile = divide_product(
        num_tiles, num_blocks, TILES, NUM_OUT_WARPS, NUM_IN_WARPS
    )
    read_tile = read_tile.to(gl.int64)
    ring = memory + warp * (STAGES * STEP) + tile * BLOCK_BYTES
    own, own_scales = ring + lane * 16, ring + lane // 4 * 16
    # A thread copies one of the four words of scales of a pair of outputs. Groups may be wider than a chunk.
    member, number, is_coarse = lane // 4, lane % 4, lane % 4 >= 2
    word = member * GROUPS + number % 2 * GROUPS // 2
    if LEVELS > 0:
        word = gl.where(is_coarse, member * LEVELS + number % 2 * (LEVELS - 1), word)
    num_words = words_of_tile(num_blocks, GROUPS, BLOCKS_OF_SCALE, LEVELS)
    copied = (
        own,
        ring + lane * 4,
        codes + (read_tile * num_blocks + in_warp) * WORDS + lane * 4,
        scales + read_tile * num_words + word,
        is_coarse,
        in_warp,
        num_blocks,
    )
    for turn in gl.static_range(STAGES - 1):
        copy_turn(copied, turn * STEP, turn, FORMAT)
    wait_for_previous(IS_DEPENDENT)

    row_tile = axis_of_three(ROW_TILES, 2, SINGLES)
    row = lane // 4 + 8 * row_tile
    place = in_warp * BLOCK_IN  # of the first input of a block
    own_inputs = lane % 4 * 2 if IN_SIXTEENS else lane % 4 * 4  # in words of two
    inputs = (x + row * x_stride + place // 2 + own_inputs, row < num_rows, place, num_in)
    zeros = gl.zeros([32 * NUM_WARPS, TILES, ROW_TILES], gl.float32, SINGLES)
    sums = (zeros, zeros, zeros, zeros)
    nothing = gl.zeros([32 * NUM_WARPS, 1, ROW_TILES], gl.int32, SINGLES)
    nothing = (nothing, nothing, nothing, nothing)
    nothing = (nothing, nothing)
    sums = add_turns(
        sums, copied, (own, own_scales), inputs, nothing, num_turns,
        copy_turn, load_inputs, add_turn, FORMAT, STEP, STAGES, IS_AHEAD,
    )  # fmt: skip
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
