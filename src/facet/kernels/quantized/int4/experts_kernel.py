"""Products of experts' matrices of shuffled 4-bit codes, in Gluon: each expert is read once for a group of its pairs.

The sums are those of `tiles.py`, with the rows of a group in place of consecutive ones. So a row's result is the same
bits whichever others chose its experts.
"""

from facet.kernels.quantized.int4.tiles import BLOCK_IN, WORDS, load_block, places_of_tiles, sums_of_tiles
from facet.kernels.quantized.shuffled.language import gl, gluon, let_next_start, wait_for_previous
from facet.kernels.quantized.shuffled.tiles import axis, opened, places_of_sums, rounded


@gluon.jit(do_not_specialize=["num_tiles", "num_blocks", "num_in"])
def experts_kernel(
    x,  # int32: two bfloat16 numbers each; by row for the first product, else in order of experts
    codes,
    scales,
    zeros,  # int16: two of them each; beside scales of uint8, words of coarse scales and minimums
    factors,  # of whole rows; None: there are none
    order,  # pairs in order of experts
    table,  # of groups, or experts of pairs
    output,  # in order of experts for the first product, else by pair
    x_stride,
    num_tiles,  # of an expert
    num_blocks,
    num_in,
    NUM_CHOSEN: gl.constexpr,
    IS_FIRST: gl.constexpr,  # of the two products: GeGLU of gate and up
    IS_SORTED: gl.constexpr,  # else every pair is a group, in the order of its number
    SCALE_DTYPE: gl.constexpr,
    HAS_ZEROS: gl.constexpr,  # else 8
    GROUPS: gl.constexpr,  # of inputs, in a block
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
    first_tile = gl.program_id(0) * (TILES * NUM_OUT_WARPS)
    group = gl.program_id(1)
    wait_for_previous(IS_DEPENDENT)
    if IS_SORTED:
        expert = gl.load(table + group * 3)
        first = gl.load(table + group * 3 + 1)
        end = gl.load(table + group * 3 + 2)
    else:
        expert = gl.load(table + group)
        first = group
        end = group + 1
    if end == 0:
        return
    first_block = expert.to(gl.int64) * num_tiles * num_blocks
    first_scale = first_block * (8 * GROUPS)
    first_zero = first_scale
    if gl.uint8 == SCALE_DTYPE:
        first_zero = expert.to(gl.int64) * num_tiles * (gl.cdiv(num_blocks, 2) * 16)
    places = places_of_tiles(
        codes + first_block * WORDS, scales + first_scale, zeros + first_zero, first_tile, num_tiles, num_blocks,
        SCALE_DTYPE, GROUPS, TILES, NUM_OUT_WARPS, NUM_IN_WARPS,
    )  # fmt: skip
    even_block = load_block(places, num_blocks, 0, SCALE_DTYPE, NUM_IN_WARPS, IS_RAGGED, HAS_ZEROS)

    lane = axis(32 * NUM_WARPS, 0, VECTORS) % 32
    pair_place = first + lane // 4 + 8 * axis(ROW_TILES, 2, VECTORS)
    is_pair = pair_place < end
    row = pair_place
    if IS_FIRST:
        if IS_SORTED:
            row = gl.load(order + pair_place, mask=is_pair, other=0)
        row = row // NUM_CHOSEN
    place = places[1] * BLOCK_IN + lane % 4 * 8  # of the first of a thread's eight inputs
    inputs = (x + row.to(gl.int64) * x_stride + place // 2 + axis(4, 3, VECTORS), is_pair, place)
    sums = sums_of_tiles(
        places, even_block, inputs, num_blocks, num_in,
        SCALE_DTYPE, TILES, ROW_TILES, NUM_OUT_WARPS, NUM_IN_WARPS, IS_RAGGED, HAS_TAIL, HAS_ZEROS,
    )  # fmt: skip

    tile_o, member, place_o = places_of_sums(first_tile, TILES, ROW_TILES, NUM_OUT_WARPS, NUM_IN_WARPS)
    if factors is not None:
        factors += expert.to(gl.int64) * (num_tiles * 16)
    sum_0, sum_1, sum_2, sum_3 = rounded(sums, tile_o, member, factors, num_tiles)
    place_o = first + place_o
    is_first = (place_o < end) & (tile_o < num_tiles)
    is_second = (place_o + 1 < end) & (tile_o < num_tiles)
    if IS_FIRST:
        target = output + place_o.to(gl.int64) * (num_tiles * 8) + tile_o * 8 + member
        gl.store(target, opened(sum_0, sum_2), mask=is_first)
        gl.store(target + num_tiles * 8, opened(sum_1, sum_3), mask=is_second)
    else:
        first_pair = place_o
        second_pair = place_o + 1
        if IS_SORTED:
            first_pair = gl.load(order + place_o, mask=place_o < end, other=0)
            second_pair = gl.load(order + place_o + 1, mask=place_o + 1 < end, other=0)
        column = tile_o * 16 + member
        target = output + first_pair.to(gl.int64) * (num_tiles * 16) + column
        gl.store(target, sum_0, mask=is_first)
        gl.store(target + 8, sum_2, mask=is_first)
        target = output + second_pair.to(gl.int64) * (num_tiles * 16) + column
        gl.store(target, sum_1, mask=is_second)
        gl.store(target + 8, sum_3, mask=is_second)
