"""Sums of products with tiles of shuffled 4-bit codes, in Gluon: what the kernels of few rows and of experts share.

Tensor cores multiply 16 outputs x 16 inputs by 16 inputs x 8 rows (`mma.sync`). What they take from a thread lies in
memory as that thread loads it (`shuffled.py`), so codes never pass through shared memory, and a word of eight codes
becomes four registers of two bfloat16 numbers each in eleven instructions. All of that is exact. Sums are float32; a
group's sum is multiplied by its scale in float32. Codes e2m1 are multiplied by their scales before, which is exact too,
and their sums by what a whole row shares. Of a group with a minimum, that times the sum of its inputs is taken away: a
product with ones gives such sums, once for all tiles of a warp. Such codes are multiplied with 128 added to each, which
spares instructions: 128 times the scale goes away with the minimum.

Tensors and warps are those of `shuffled/tiles.py`; a block has 128 inputs. Which sums are added in which order depends
on the matrix alone. So a row's result is the same bits in any company.
"""

from facet.kernels.quantized.int4.codes import offset_of, unpack_codes, unpack_small_scales, values_of_fp4
from facet.kernels.quantized.int4.products import add_products_less_minimums, add_values, unpack_coarse
from facet.kernels.quantized.shuffled.language import gl, gluon, stay_in_order
from facet.kernels.quantized.shuffled.products import add_products, sum_inputs
from facet.kernels.quantized.shuffled.scales import unpack_scales
from facet.kernels.quantized.shuffled.tiles import axis, axis_of_three, sums_of_warps, words_of

BLOCK_IN = gl.constexpr(128)  # inputs of a block of codes
WORDS = gl.constexpr(256)  # of four bytes, in a block
# Inputs of a block that a word of codes from each of four threads covers.
CHUNK = gl.constexpr(32)


@gluon.jit
def small_scale_words(words, LAYOUT: gl.constexpr):
    """A word for each chunk, as `unpack_small_scales` takes it. Of four words of a block, the first two are of threads
    0 and 1 of a group of four, the last two of the others: bytes of all chunks for outputs g, and for outputs g + 8."""
    is_second = axis_of_three(words[0].shape[0], 0, LAYOUT) % 4 >= 2
    upper = gl.where(is_second, words[2], words[0])
    lower = gl.where(is_second, words[3], words[1])
    return (
        (upper & 127) << 4 | (lower & 127) << 20,
        (upper >> 8 & 127) << 4 | (lower >> 8 & 127) << 20,
        (upper >> 16 & 127) << 4 | (lower >> 16 & 127) << 20,
        (upper >> 24 & 127) << 4 | (lower >> 24 & 127) << 20,
    )


@gluon.jit
def scale_words(scales, SCALE_DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    """A word of two scales for each of the four chunks of a block, whose groups may be wider than a chunk."""
    if gl.float8e4nv == SCALE_DTYPE:
        words = small_scale_words(words_of(scales, LAYOUT), LAYOUT)
    elif scales.shape[3] == 4:
        words = words_of(scales, LAYOUT)
    elif scales.shape[3] == 2:
        first, second = gl.split(scales)
        first = gl.convert_layout(first, LAYOUT, assert_trivial=True)
        second = gl.convert_layout(second, LAYOUT, assert_trivial=True)
        words = (first, first, second, second)
    else:
        only = gl.reshape(scales, [scales.shape[0], scales.shape[1], scales.shape[2]])
        only = gl.convert_layout(only, LAYOUT, assert_trivial=True)
        words = (only, only, only, only)
    return words


@gluon.jit
def load_block(
    places, num_blocks, turn,
    SCALE_DTYPE: gl.constexpr, NUM_IN_WARPS: gl.constexpr, IS_RAGGED: gl.constexpr, HAS_ZEROS: gl.constexpr,
):  # fmt: skip
    """(codes of outputs g, of outputs g + 8, scales of both, zeros of both or what is coarse): the block of each tile
    that a warp multiplies in a turn.

    After the last the last is loaded again, with scales of zero.
    """
    code_places, code_warp, scale_places, scale_warp, zero_places = places
    GROUPS: gl.constexpr = scale_places.shape[3]
    if IS_RAGGED:
        code_block = gl.minimum(turn * NUM_IN_WARPS + code_warp, num_blocks - 1)
        scale_block = gl.minimum(turn * NUM_IN_WARPS + scale_warp, num_blocks - 1)
    else:
        last = num_blocks - NUM_IN_WARPS
        code_block = gl.minimum(turn * NUM_IN_WARPS, last) + code_warp
        scale_block = gl.minimum(turn * NUM_IN_WARPS, last) + scale_warp
    upper = gl.load(code_places + code_block * WORDS, eviction_policy="evict_first")
    lower = gl.load(code_places + (code_block * WORDS + WORDS // 2), eviction_policy="evict_first")
    scales = gl.load(scale_places + scale_block * (8 * GROUPS), eviction_policy="evict_first")
    zeros = scales
    if HAS_ZEROS:
        zeros = gl.load(zero_places + scale_block * (8 * GROUPS), eviction_policy="evict_first").to(gl.int32)
    elif gl.uint8 == SCALE_DTYPE:
        NUM_WARPS: gl.constexpr = scale_places.shape[0] // 32
        PAIRS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 2], [32, 1, 1, 1], [NUM_WARPS, 1, 1, 1], [3, 2, 1, 0])
        # Not evicted first: the words serve two blocks.
        zeros = gl.load(zero_places + gl.convert_layout(scale_block // 2 * 16, PAIRS, assert_trivial=True))
    return upper, lower, scales, zeros


@gluon.jit
def add_block(
    sums, block, inputs, turn, num_blocks, scale_warp, num_in,
    SCALE_DTYPE: gl.constexpr, NUM_IN_WARPS: gl.constexpr, IS_RAGGED: gl.constexpr, HAS_TAIL: gl.constexpr,
    HAS_ZEROS: gl.constexpr, SINGLES: gl.constexpr,
):  # fmt: skip
    """Sums plus the products of a block."""
    upper, lower, scales, zeros = block
    x_places, is_row, place = inputs
    if IS_RAGGED:
        scales = gl.where(turn * NUM_IN_WARPS + scale_warp < num_blocks, scales, 0)
    upper_words, lower_words = words_of(upper, SINGLES), words_of(lower, SINGLES)
    words = scale_words(scales, SCALE_DTYPE, SINGLES)
    if HAS_ZEROS:
        zero_words = scale_words(zeros, SCALE_DTYPE, SINGLES)
    elif gl.uint8 == SCALE_DTYPE:
        coarse_g, coarse_h = gl.split(zeros)
        coarse = both_coarse(
            gl.convert_layout(coarse_g, SINGLES, assert_trivial=True),
            gl.convert_layout(coarse_h, SINGLES, assert_trivial=True),
        )
    for chunk in gl.static_range(4):
        first = turn * (NUM_IN_WARPS * BLOCK_IN) + chunk * CHUNK
        is_live = is_row
        if IS_RAGGED or HAS_TAIL:
            is_live = is_live & (first + place < num_in)
        if chunk > 0 and sums[0].shape[2] > 1:
            stay_in_order()  # registers cannot take the inputs of all chunks at once
        b = words_of(gl.load(x_places + first // 2, mask=is_live, other=0), SINGLES)
        zero_pair = words[chunk]
        if HAS_ZEROS:
            zero_pair = zero_words[chunk]
        elif gl.uint8 == SCALE_DTYPE:
            zero_pair = coarse
        sums = add_chunk(
            sums, upper_words[chunk], lower_words[chunk], words[chunk], zero_pair, b, SCALE_DTYPE, HAS_ZEROS, SINGLES
        )
    return sums


@gluon.jit
def both_coarse(word_g, word_h):
    """What `add_chunk` takes, of words of both outputs' coarse scales and minimums."""
    return unpack_coarse(word_g), unpack_coarse(word_h)


@gluon.jit
def add_chunk(
    sums, upper, lower, scales, zeros, b, SCALE_DTYPE: gl.constexpr, HAS_ZEROS: gl.constexpr, SINGLES: gl.constexpr
):  # fmt: skip
    """Sums plus the products of 32 inputs: words of codes of outputs g and g + 8, of their scales and their zeros, or
    what is coarse."""
    if gl.uint8 == SCALE_DTYPE:
        sums = add_products_less_minimums(sums, upper, lower, scales, b, sum_inputs(b), zeros[0], zeros[1])
    elif gl.float8e4nv == SCALE_DTYPE:
        scale_g, scale_h = unpack_small_scales(scales)
        sums = add_values(sums, values_of_fp4(upper, scale_g), values_of_fp4(lower, scale_h), b)
    else:
        scale_g, scale_h = unpack_scales(scales, SCALE_DTYPE)
        if HAS_ZEROS:
            offset_g, offset_h = offset_of(zeros & 255), offset_of((zeros >> 8) & 255)
        else:
            offset_g = offset_of(gl.full(scales.shape, 8, gl.int32, SINGLES))
            offset_h = offset_g
        sums = add_products(sums, unpack_codes(upper, offset_g), unpack_codes(lower, offset_h), b, scale_g, scale_h)
    return sums


@gluon.jit
def places_of_tiles(
    codes, scales, zeros, first_tile, num_tiles, num_blocks,
    SCALE_DTYPE: gl.constexpr, GROUPS: gl.constexpr,
    TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr,
):  # fmt: skip
    """The places where a program's tiles begin, as `load_block` takes them."""
    NUM_WARPS: gl.constexpr = NUM_OUT_WARPS * NUM_IN_WARPS
    VECTORS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [32, 1, 1, 1], [NUM_WARPS, 1, 1, 1], [3, 2, 1, 0])
    SCALES: gl.constexpr = gl.BlockedLayout([1, 1, 1, GROUPS], [32, 1, 1, 1], [NUM_WARPS, 1, 1, 1], [3, 2, 1, 0])
    thread = axis(32 * NUM_WARPS, 0, VECTORS)
    tile = first_tile + thread // 32 % NUM_OUT_WARPS * TILES + axis(TILES, 1, VECTORS)
    # Beyond the last tile that one is read again, which needs no mask; the store drops the result.
    first_block = gl.minimum(tile, num_tiles - 1).to(gl.int64) * num_blocks
    code_places = codes + first_block * WORDS + thread % 32 * 4 + axis(4, 3, VECTORS)

    scale_thread = axis(32 * NUM_WARPS, 0, SCALES)
    scale_warp = scale_thread // (32 * NUM_OUT_WARPS)
    scale_tile = first_tile + scale_thread // 32 % NUM_OUT_WARPS * TILES + axis(TILES, 1, SCALES)
    first_scale = gl.minimum(scale_tile, num_tiles - 1).to(gl.int64) * num_blocks * (8 * GROUPS)
    scale_place = first_scale + scale_thread % 32 // 4 * GROUPS + axis(GROUPS, 3, SCALES)
    zero_places = zeros + scale_place
    if gl.uint8 == SCALE_DTYPE:
        zero_places = zeros + coarse_places(first_tile, num_tiles, num_blocks, TILES, NUM_OUT_WARPS, NUM_IN_WARPS)
    return code_places, thread // (32 * NUM_OUT_WARPS), scales + scale_place, scale_warp, zero_places


@gluon.jit
def coarse_places(
    first_tile, num_tiles, num_blocks,
    TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr,
):  # fmt: skip
    """The places of the coarse scales of the first two blocks: two words for each thread."""
    NUM_WARPS: gl.constexpr = NUM_OUT_WARPS * NUM_IN_WARPS
    PAIRS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 2], [32, 1, 1, 1], [NUM_WARPS, 1, 1, 1], [3, 2, 1, 0])
    thread = axis(32 * NUM_WARPS, 0, PAIRS)
    tile = first_tile + thread // 32 % NUM_OUT_WARPS * TILES + axis(TILES, 1, PAIRS)
    first = gl.minimum(tile, num_tiles - 1).to(gl.int64) * gl.cdiv(num_blocks, 2) * 16
    return first + thread % 32 // 4 * 2 + axis(2, 3, PAIRS)


@gluon.jit
def sums_of_tiles(
    places, even_block, inputs, num_blocks, num_in,
    SCALE_DTYPE: gl.constexpr, TILES: gl.constexpr, ROW_TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr,
    NUM_IN_WARPS: gl.constexpr, IS_RAGGED: gl.constexpr, HAS_TAIL: gl.constexpr, HAS_ZEROS: gl.constexpr,
):  # fmt: skip
    """Sums [threads of NUM_OUT_WARPS, tiles, row tiles]: thread 4 g + t has rows 2 t and 2 t + 1 of output g,
    then those of output g + 8. `even_block` is the first, loaded before."""
    NUM_WARPS: gl.constexpr = NUM_OUT_WARPS * NUM_IN_WARPS
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [32, 1, 1], [NUM_WARPS, 1, 1], [2, 1, 0])
    scale_warp = places[3]
    zeros = gl.zeros([32 * NUM_WARPS, TILES, ROW_TILES], gl.float32, SINGLES)
    sums = (zeros, zeros, zeros, zeros)
    for turn in range(0, gl.cdiv(num_blocks, NUM_IN_WARPS), 2):
        # Two turns, so that a block stays in the registers into which it was loaded.
        odd_block = load_block(places, num_blocks, turn + 1, SCALE_DTYPE, NUM_IN_WARPS, IS_RAGGED, HAS_ZEROS)
        stay_in_order()
        sums = add_block(
            sums, even_block, inputs, turn, num_blocks, scale_warp, num_in,
            SCALE_DTYPE, NUM_IN_WARPS, IS_RAGGED, HAS_TAIL, HAS_ZEROS, SINGLES,
        )  # fmt: skip
        even_block = load_block(places, num_blocks, turn + 2, SCALE_DTYPE, NUM_IN_WARPS, IS_RAGGED, HAS_ZEROS)
        stay_in_order()
        sums = add_block(
            sums, odd_block, inputs, turn + 1, num_blocks, scale_warp, num_in,
            SCALE_DTYPE, NUM_IN_WARPS, IS_RAGGED, HAS_TAIL, HAS_ZEROS, SINGLES,
        )  # fmt: skip
    return sums_of_warps(sums, NUM_OUT_WARPS, NUM_IN_WARPS, SINGLES)
