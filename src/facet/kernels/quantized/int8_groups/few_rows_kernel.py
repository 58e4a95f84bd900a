"""Products of few rows with matrices of shuffled 8-bit codes, in Gluon: bound by reading the codes once.

`tiles.py` says how a program multiplies.
"""

from facet.kernels.quantized.int8_groups.tiles import BLOCK_IN, load_block, places_of_tiles, sums_of_tiles
from facet.kernels.quantized.shuffled.language import gl, gluon, let_next_start, wait_for_previous
from facet.kernels.quantized.shuffled.tiles import axis, store_sums


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["gated_stride", "num_rows", "num_tiles", "num_blocks", "num_in"])
def few_rows_kernel(
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
    IS_RAGGED: gl.constexpr,  # blocks do not go evenly into warps
    HAS_TAIL: gl.constexpr,  # inputs do not go evenly into blocks
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    NUM_WARPS: gl.constexpr = NUM_OUT_WARPS * NUM_IN_WARPS
    VECTORS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [32, 1, 1, 1], [NUM_WARPS, 1, 1, 1], [3, 2, 1, 0])

    # Programs that share tiles run side by side: one reads them from memory, the others from the cache.
    num_row_groups = gl.cdiv(num_rows, 8 * ROW_TILES)
    first_row = gl.program_id(0) % num_row_groups * (8 * ROW_TILES)
    first_tile = gl.program_id(0) // num_row_groups * (TILES * NUM_OUT_WARPS)
    places = places_of_tiles(
        codes, scales, first_tile, num_tiles, num_blocks, GROUPS, BLOCKS_OF_SCALE, LEVELS, TILES, NUM_OUT_WARPS,
        NUM_IN_WARPS,
    )  # fmt: skip
    # Codes and scales are on their way while x is still being computed.
    even_block = load_block(places, num_blocks, 0, NUM_IN_WARPS, IS_RAGGED, BLOCKS_OF_SCALE, LEVELS)
    wait_for_previous(IS_DEPENDENT)
    lane = axis(32 * NUM_WARPS, 0, VECTORS) % 32
    word = axis(4, 3, VECTORS)
    row = first_row + lane // 4 + 8 * axis(ROW_TILES, 2, VECTORS)
    # Where a thread's inputs of a chunk are, in words of two.
    place = lane % 4 * 2 + word // 2 * 8 + word % 2 if LEVELS == 1 else lane % 4 * 4 + word
    first = places[1] * BLOCK_IN  # of the chunk
    inputs = (x + row * x_stride + first // 2 + place, row < num_rows, first)
    sums = sums_of_tiles(
        places, even_block, inputs, num_blocks, num_in,
        SCALE_DTYPE, LEVELS, IS_NARROW, BLOCKS_OF_SCALE, TILES, ROW_TILES, NUM_OUT_WARPS, NUM_IN_WARPS, IS_RAGGED,
        HAS_TAIL,
    )  # fmt: skip
    store_sums(
        sums, None, first_tile, first_row, gated, output, gated_stride, num_rows, num_tiles,
        IS_GATED, HAS_GATED_INPUT, TILES, ROW_TILES, NUM_OUT_WARPS, NUM_IN_WARPS,
    )  # fmt: skip
