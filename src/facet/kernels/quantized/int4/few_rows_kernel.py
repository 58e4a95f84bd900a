"""Products of few rows with matrices of shuffled 4-bit codes, in Gluon: bound by reading the codes once.

`tiles.py` says how a program multiplies.
"""

from facet.kernels.quantized.int4.tiles import BLOCK_IN, load_block, places_of_tiles, sums_of_tiles
from facet.kernels.quantized.shuffled.language import gl, gluon, let_next_start, wait_for_previous
from facet.kernels.quantized.shuffled.tiles import axis, store_sums


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["gated_stride", "num_rows", "num_tiles", "num_blocks", "num_in"])
def few_rows_kernel(
    x,  # int32: two bfloat16 numbers each
    codes,
    scales,
    zeros,  # int16: two of them each; beside scales of uint8, words of coarse scales and minimums
    factors,  # of whole rows; None: there are none
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
    SCALE_DTYPE: gl.constexpr,
    HAS_ZEROS: gl.constexpr,  # else 8
    GROUPS: gl.constexpr,  # of a block
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
        codes, scales, zeros, first_tile, num_tiles, num_blocks,
        SCALE_DTYPE, GROUPS, TILES, NUM_OUT_WARPS, NUM_IN_WARPS,
    )  # fmt: skip
    # Codes and scales are on their way while x is still being computed.
    even_block = load_block(places, num_blocks, 0, SCALE_DTYPE, NUM_IN_WARPS, IS_RAGGED, HAS_ZEROS)
    wait_for_previous(IS_DEPENDENT)
    lane = axis(32 * NUM_WARPS, 0, VECTORS) % 32
    row = first_row + lane // 4 + 8 * axis(ROW_TILES, 2, VECTORS)
    place = places[1] * BLOCK_IN + lane % 4 * 8  # of the first of a thread's eight inputs
    inputs = (x + row * x_stride + place // 2 + axis(4, 3, VECTORS), row < num_rows, place)
    sums = sums_of_tiles(
        places, even_block, inputs, num_blocks, num_in,
        SCALE_DTYPE, TILES, ROW_TILES, NUM_OUT_WARPS, NUM_IN_WARPS, IS_RAGGED, HAS_TAIL, HAS_ZEROS,
    )  # fmt: skip
    store_sums(
        sums, factors, first_tile, first_row, gated, output, gated_stride, num_rows, num_tiles,
        IS_GATED, HAS_GATED_INPUT, TILES, ROW_TILES, NUM_OUT_WARPS, NUM_IN_WARPS,
    )  # fmt: skip
