"""Sums of products with tiles of shuffled 8-bit codes, in Gluon.

Tensor cores multiply 16 outputs x 16 inputs by 16 inputs x 8 rows (`mma.sync`). What they take from a thread lies in
memory as that thread loads it (`shuffled.py`), so codes never pass through shared memory, and a word of four codes
becomes two registers of two bfloat16 numbers each. That is exact. Sums are float32; a group's sum is multiplied by its
scale in float32, and a minimum is multiplied by the sum of the group's inputs.

Tensors and warps are those of `shuffled/tiles.py`. Which sums are added in which order depends on the matrix alone. So
a row's result is the same bits in any company.
"""

from facet.kernels.quantized.int8_groups.codes import unpack_bytes
from facet.kernels.quantized.int8_groups.products import add_less_minimums, add_sixteens
from facet.kernels.quantized.shuffled.language import gl, gluon, stay_in_order
from facet.kernels.quantized.shuffled.products import add_products, sum_inputs
from facet.kernels.quantized.shuffled.scales import scales_of_bytes, unpack_scales
from facet.kernels.quantized.shuffled.tiles import axis, sums_of_warps, words_of

BLOCK_IN = gl.constexpr(64)  # inputs of a block of codes
WORDS = gl.constexpr(256)  # of four bytes, in a block
CHUNK = gl.constexpr(32)  # inputs of half a block
SIGNED_MIDDLE = gl.constexpr(128)  # what is added to scales of int8


@gluon.jit
def offset_of_scales(block, GROUPS: gl.constexpr, BLOCKS_OF_SCALE: gl.constexpr, LEVELS: gl.constexpr):
    """Where the scales of a block begin among the words of its tile."""
    if LEVELS > 0:
        # By bits: the compiler does not know that blocks are not negative.
        offset = (block >> 2) * (64 + 8 * LEVELS) + (block & 3) * 16
    else:
        offset = block // BLOCKS_OF_SCALE * (8 * GROUPS)
    return offset


@gluon.jit
def offset_of_coarse(block, LEVELS: gl.constexpr):
    """Where the coarse scales of a block begin among the words of its tile."""
    return (block >> 2) * (64 + 8 * LEVELS) + 64


@gluon.jit
def words_of_tile(num_blocks, GROUPS: gl.constexpr, BLOCKS_OF_SCALE: gl.constexpr, LEVELS: gl.constexpr):
    """The words of scales that a tile has, coarse ones included."""
    return (num_blocks >> 2) * (64 + 8 * LEVELS) if LEVELS > 0 else gl.cdiv(num_blocks, BLOCKS_OF_SCALE) * (8 * GROUPS)


@gluon.jit
def places_of_words(
    words, first_tile, num_tiles, num_words,
    WIDTH: gl.constexpr, TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr,
):  # fmt: skip
    """The places where the words of a program's tiles begin, `WIDTH` of them for each thread, and which of the warps
    that divide inputs the thread belongs to."""
    NUM_WARPS: gl.constexpr = NUM_OUT_WARPS * NUM_IN_WARPS
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1, 1, WIDTH], [32, 1, 1, 1], [NUM_WARPS, 1, 1, 1], [3, 2, 1, 0])
    thread = axis(32 * NUM_WARPS, 0, LAYOUT)
    tile = first_tile + thread // 32 % NUM_OUT_WARPS * TILES + axis(TILES, 1, LAYOUT)
    first = gl.minimum(tile, num_tiles - 1).to(gl.int64) * num_words
    return words + (first + thread % 32 // 4 * WIDTH + axis(WIDTH, 3, LAYOUT)), thread // (32 * NUM_OUT_WARPS)


@gluon.jit
def places_of_tiles(
    codes, scales, first_tile, num_tiles, num_blocks,
    GROUPS: gl.constexpr, BLOCKS_OF_SCALE: gl.constexpr, LEVELS: gl.constexpr,
    TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr,
):  # fmt: skip
    """The places where a program's tiles begin, as `load_block` takes them."""
    NUM_WARPS: gl.constexpr = NUM_OUT_WARPS * NUM_IN_WARPS
    VECTORS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [32, 1, 1, 1], [NUM_WARPS, 1, 1, 1], [3, 2, 1, 0])
    thread = axis(32 * NUM_WARPS, 0, VECTORS)
    tile = first_tile + thread // 32 % NUM_OUT_WARPS * TILES + axis(TILES, 1, VECTORS)
    # Beyond the last tile that one is read again, which needs no mask; the store drops the result.
    first_block = gl.minimum(tile, num_tiles - 1).to(gl.int64) * num_blocks
    code_places = codes + first_block * WORDS + thread % 32 * 4 + axis(4, 3, VECTORS)
    num_words = words_of_tile(num_blocks, GROUPS, BLOCKS_OF_SCALE, LEVELS)
    scale_places, scale_warp = places_of_words(
        scales, first_tile, num_tiles, num_words, GROUPS, TILES, NUM_OUT_WARPS, NUM_IN_WARPS
    )
    coarse_places, coarse_warp = scale_places, scale_warp
    if LEVELS > 0:
        coarse_places, coarse_warp = places_of_words(
            scales, first_tile, num_tiles, num_words, LEVELS, TILES, NUM_OUT_WARPS, NUM_IN_WARPS
        )
    return code_places, thread // (32 * NUM_OUT_WARPS), scale_places, scale_warp, coarse_places, coarse_warp


@gluon.jit
def block_of(turn, warp, num_blocks, NUM_IN_WARPS: gl.constexpr, IS_RAGGED: gl.constexpr):
    """The block that a warp multiplies in a turn; after the last, the last again."""
    if IS_RAGGED:
        block = gl.minimum(turn * NUM_IN_WARPS + warp, num_blocks - 1)
    else:
        block = gl.minimum(turn * NUM_IN_WARPS, num_blocks - NUM_IN_WARPS) + warp
    return block


@gluon.jit
def load_block(
    places, num_blocks, turn,
    NUM_IN_WARPS: gl.constexpr, IS_RAGGED: gl.constexpr, BLOCKS_OF_SCALE: gl.constexpr, LEVELS: gl.constexpr,
):  # fmt: skip
    """(codes of the first chunk, of the second, scales, coarse ones): the block of each tile that a warp multiplies in
    a turn."""
    code_places, code_warp, scale_places, scale_warp, coarse_places, coarse_warp = places
    place = block_of(turn, code_warp, num_blocks, NUM_IN_WARPS, IS_RAGGED) * WORDS
    first = gl.load(code_places + place, eviction_policy="evict_first")
    second = gl.load(code_places + (place + WORDS // 2), eviction_policy="evict_first")
    scale_block = block_of(turn, scale_warp, num_blocks, NUM_IN_WARPS, IS_RAGGED)
    scales = gl.load(scale_places + offset_of_scales(scale_block, scale_places.shape[3], BLOCKS_OF_SCALE, LEVELS))
    coarse = scales
    if LEVELS > 0:
        coarse_block = block_of(turn, coarse_warp, num_blocks, NUM_IN_WARPS, IS_RAGGED)
        coarse = gl.load(coarse_places + offset_of_coarse(coarse_block, LEVELS))
    return first, second, scales, coarse


@gluon.jit
def split_words(words, LAYOUT: gl.constexpr):
    """Two words of each thread, apart; one twice."""
    if words.shape[3] == 2:
        first, second = gl.split(words)
        first = gl.convert_layout(first, LAYOUT, assert_trivial=True)
        second = gl.convert_layout(second, LAYOUT, assert_trivial=True)
    else:
        first = gl.reshape(words, [words.shape[0], words.shape[1], words.shape[2]])
        first = gl.convert_layout(first, LAYOUT, assert_trivial=True)
        second = first
    return first, second


@gluon.jit
def factors_of(first, second, LEVELS: gl.constexpr):
    """What each byte of a word of fine scales is multiplied by, from words of coarse ones; minimums get the other
    sign."""
    upper, lower = unpack_scales(first, gl.float16)
    factors = (upper, lower, upper, lower)
    if LEVELS == 2:
        upper_minimum, lower_minimum = unpack_scales(second, gl.float16)
        factors = (upper, lower, -upper_minimum, -lower_minimum)
    return factors


@gluon.jit
def add_chunk(
    sums, codes, scales, coarse, b,
    SCALE_DTYPE: gl.constexpr, LEVELS: gl.constexpr, IS_NARROW: gl.constexpr,
):  # fmt: skip
    """Sums plus the products of 32 inputs: words of codes of outputs g and g + 8, a word of scales, and coarse ones."""
    upper = unpack_bytes(codes[0], codes[1], IS_NARROW)
    lower = unpack_bytes(codes[2], codes[3], IS_NARROW)
    if LEVELS == 0:
        upper_scale, lower_scale = unpack_scales(scales, SCALE_DTYPE)
        sums = add_products(sums, upper, lower, b, upper_scale, lower_scale)
    elif LEVELS == 1:
        sums = add_sixteens(sums, upper, lower, b, scales_of_bytes(scales, coarse, SIGNED_MIDDLE))
    else:
        sums = add_less_minimums(sums, upper, lower, b, scales_of_bytes(scales, coarse, 0), sum_inputs(b))
    return sums


@gluon.jit
def add_block(
    sums, block, inputs, turn, num_blocks, warps, num_in,
    SCALE_DTYPE: gl.constexpr, LEVELS: gl.constexpr, IS_NARROW: gl.constexpr, NUM_IN_WARPS: gl.constexpr,
    IS_RAGGED: gl.constexpr, HAS_TAIL: gl.constexpr, SINGLES: gl.constexpr,
):  # fmt: skip
    """Sums plus the products of a block."""
    first_codes, second_codes, scales, coarse = block
    scale_warp, coarse_warp = warps
    x_places, is_row, place = inputs
    if IS_RAGGED and LEVELS == 0:
        scales = gl.where(turn * NUM_IN_WARPS + scale_warp < num_blocks, scales, 0)
    elif IS_RAGGED:
        coarse = gl.where(turn * NUM_IN_WARPS + coarse_warp < num_blocks, coarse, 0)
    scale_words = split_words(scales, SINGLES)
    factors = scale_words
    if LEVELS > 0:
        first_coarse, second_coarse = split_words(coarse, SINGLES)
        factors = factors_of(first_coarse, second_coarse, LEVELS)
    code_words = (words_of(first_codes, SINGLES), words_of(second_codes, SINGLES))
    for chunk in gl.static_range(2):
        first = turn * (NUM_IN_WARPS * BLOCK_IN) + chunk * CHUNK
        is_live = is_row
        if IS_RAGGED or HAS_TAIL:
            is_live = is_live & (first + place < num_in)
        if chunk > 0 and sums[0].shape[2] > 1:
            stay_in_order()  # registers cannot take the inputs of all chunks at once
        b = words_of(gl.load(x_places + first // 2, mask=is_live, other=0), SINGLES)
        sums = add_chunk(sums, code_words[chunk], scale_words[chunk], factors, b, SCALE_DTYPE, LEVELS, IS_NARROW)
    return sums


@gluon.jit
def sums_of_tiles(
    places, even_block, inputs, num_blocks, num_in,
    SCALE_DTYPE: gl.constexpr, LEVELS: gl.constexpr, IS_NARROW: gl.constexpr, BLOCKS_OF_SCALE: gl.constexpr,
    TILES: gl.constexpr, ROW_TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr,
    IS_RAGGED: gl.constexpr, HAS_TAIL: gl.constexpr,
):  # fmt: skip
    """Sums [threads of NUM_OUT_WARPS, tiles, row tiles]: thread 4 g + t has rows 2 t and 2 t + 1 of output g,
    then those of output g + 8. `even_block` is the first, loaded before."""
    NUM_WARPS: gl.constexpr = NUM_OUT_WARPS * NUM_IN_WARPS
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [32, 1, 1], [NUM_WARPS, 1, 1], [2, 1, 0])
    warps = (places[3], places[5])
    zeros = gl.zeros([32 * NUM_WARPS, TILES, ROW_TILES], gl.float32, SINGLES)
    sums = (zeros, zeros, zeros, zeros)
    for turn in range(0, gl.cdiv(num_blocks, NUM_IN_WARPS), 2):
        # Two turns, so that a block stays in the registers into which it was loaded.
        odd_block = load_block(places, num_blocks, turn + 1, NUM_IN_WARPS, IS_RAGGED, BLOCKS_OF_SCALE, LEVELS)
        stay_in_order()
        sums = add_block(
            sums, even_block, inputs, turn, num_blocks, warps, num_in,
            SCALE_DTYPE, LEVELS, IS_NARROW, NUM_IN_WARPS, IS_RAGGED, HAS_TAIL, SINGLES,
        )  # fmt: skip
        even_block = load_block(places, num_blocks, turn + 2, NUM_IN_WARPS, IS_RAGGED, BLOCKS_OF_SCALE, LEVELS)
        stay_in_order()
        sums = add_block(
            sums, odd_block, inputs, turn + 1, num_blocks, warps, num_in,
            SCALE_DTYPE, LEVELS, IS_NARROW, NUM_IN_WARPS, IS_RAGGED, HAS_TAIL, SINGLES,
        )  # fmt: skip
    return sums_of_warps(sums, NUM_OUT_WARPS, NUM_IN_WARPS, SINGLES)
