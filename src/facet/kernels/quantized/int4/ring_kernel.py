"""Products of up to 8 rows with matrices of shuffled 4-bit codes that come through rings, in Gluon.

A program multiplies as those of `few_rows_kernel.py` do, and adds in their order: the same bits. `shuffled/rings.py`
says how codes come, and why.
"""

from facet.kernels.quantized.int4.tiles import BLOCK_IN, CHUNK, WORDS, add_chunk, both_coarse, small_scale_words
from facet.kernels.quantized.shuffled.inputs import load_four_chunks
from facet.kernels.quantized.shuffled.language import gl, gluon, let_next_start, thread_barrier, wait_for_previous
from facet.kernels.quantized.shuffled.own_copies import (
    commit_own_copies,
    copy_own_block,
    copy_own_coarse,
    load_own_pair,
    load_own_words,
)
from facet.kernels.quantized.shuffled.rings import (
    BLOCK_BYTES,
    add_turns,
    divide_product,
    make_rings,
    sums_of_all,
)
from facet.kernels.quantized.shuffled.tiles import store_at, store_sums

COARSE_BYTES = gl.constexpr(64)  # behind a block, where scales are uint8


@gluon.jit
def copy_turn(copied, offset, turn, FORMAT: gl.constexpr):
    """Starts the copies of the blocks of a turn; after the last, of zeros: scales of zero."""
    GROUPS: gl.constexpr = FORMAT[1]
    NUM_IN_WARPS: gl.constexpr = FORMAT[2]
    own, own_scales, codes, scales, copied_coarse, coarse, in_warp, num_blocks = copied
    block = turn * NUM_IN_WARPS
    is_there = block + in_warp + 0 * own < num_blocks
    copy_own_block(own + offset, codes + block * WORDS, own_scales + offset, scales + block * (8 * GROUPS), is_there)
    if coarse is not None:
        copy_own_coarse(copied_coarse + offset, coarse + (block + in_warp) // 2 * 16, is_there)
    commit_own_copies()


@gluon.jit
def load_inputs(before, inputs, turn, num_turns, FORMAT: gl.constexpr):
    """The inputs of a turn, chunk by chunk; after the last turn, and of rows that are not there, some that were
    before."""
    NUM_IN_WARPS: gl.constexpr = FORMAT[2]
    HAS_TAIL: gl.constexpr = FORMAT[3]
    x_places, is_row, place, num_in = inputs
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
    return load_four_chunks(before, x_places + turn * (NUM_IN_WARPS * BLOCK_IN // 2), is_live, HAS_TAIL)


@gluon.jit
def add_turn(sums, places, offset, chunks, FORMAT: gl.constexpr):
    """Sums plus the products of the blocks of a turn."""
    SCALE_DTYPE: gl.constexpr = FORMAT[0]
    SINGLES: gl.constexpr = FORMAT[4]
    own, own_scales, own_coarse = places
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
    FORMAT: gl.constexpr = (SCALE_DTYPE, GROUPS, NUM_IN_WARPS, HAS_TAIL, SINGLES)
    memory = make_rings(STAGES * NUM_WARPS * STEP, NUM_WARPS)
    lane, warp, in_warp, num_turns, first_tile, tile, read_tile = divide_product(
        num_tiles, num_blocks, TILES, NUM_OUT_WARPS, NUM_IN_WARPS
    )
    first_block = read_tile.to(gl.int64) * num_blocks + in_warp
    ring = memory + warp * (STAGES * STEP) + tile * BYTES
    own, own_scales, own_coarse = ring + lane * 16, ring + lane // 4 * 16, ring + lane // 4 * 8
    if gl.uint8 == SCALE_DTYPE:
        coarse += read_tile.to(gl.int64) * (gl.cdiv(num_blocks, 2) * 16) + lane % 16
    copied = (
        own,
        ring + lane * 4,
        codes + first_block * WORDS + lane * 4,
        # Groups may be wider than a chunk.
        scales + first_block * (8 * GROUPS) + lane // 4 * GROUPS + lane % 4 * GROUPS // 4,
        # Two threads copy the same word.
        ring + lane % 16 * 4,
        coarse,
        in_warp,
        num_blocks,
    )
    for turn in gl.static_range(STAGES - 1):
        copy_turn(copied, turn * STEP, turn, FORMAT)
    wait_for_previous(IS_DEPENDENT)

    row = lane // 4
    place = in_warp * BLOCK_IN + lane % 4 * 8  # of the first of a thread's eight inputs
    inputs = (x + row * x_stride + place // 2, row < num_rows, place, num_in)
    zeros = gl.zeros([32 * NUM_WARPS, TILES, 1], gl.float32, SINGLES)
    sums = (zeros, zeros, zeros, zeros)
    nothing = gl.zeros([32 * NUM_WARPS, 1, 1], gl.int32, SINGLES)
    nothing = (nothing, nothing, nothing, nothing)
    nothing = (nothing, nothing, nothing, nothing)
    sums = add_turns(
        sums, copied, (own, own_scales, own_coarse), inputs, nothing, num_turns,
        copy_turn, load_inputs, add_turn, FORMAT, STEP, STAGES, IS_AHEAD,
    )  # fmt: skip
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
