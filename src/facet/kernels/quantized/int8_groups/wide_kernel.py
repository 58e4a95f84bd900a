"""Products of tens of rows with matrices of shuffled 8-bit codes, in Gluon, by the large products of Hopper.

The loop is that of 4-bit codes (`shuffled/wide_loop.py`): a turn has two blocks of a tile. Values are rounded once, as
those of `dequantize.py` are.
"""

from facet.kernels.quantized.int8_groups.codes import dequantize_bytes
from facet.kernels.quantized.int8_groups.tiles import (
    SIGNED_MIDDLE,
    WORDS,
    factors_of,
    offset_of_coarse,
    offset_of_scales,
    words_of_tile,
)
from facet.kernels.quantized.shuffled.language import allocate_shared_memory, copy_to_shared, gl, gluon, let_next_start
from facet.kernels.quantized.shuffled.scales import scales_of_bytes, unpack_scales
from facet.kernels.quantized.shuffled.tiles import axis_of_three, words_of
from facet.kernels.quantized.shuffled.wide_loop import left_operand, load_pair, multiply_turns


@gluon.jit
def copy_turn(
    sources, targets, stage, group, turn, num_tiles, num_blocks,
    FORMAT: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """Starts the copies of two blocks of every tile of a group, and of their scales. Where there is no second block,
    the first takes its place: x has zeros there."""
    GROUPS: gl.constexpr = FORMAT[1]
    BLOCKS_OF_SCALE: gl.constexpr = FORMAT[2]
    LEVELS: gl.constexpr = FORMAT[3]
    codes, scales = sources
    code_tiles, scale_tiles = targets
    FLAT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [TILES, 1], [1, 0])
    QUADS: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 8, 4], [TILES, 1, 1], [2, 1, 0])
    # Beyond the last tile that one is read again, which needs no mask; the store drops the result.
    tile = gl.minimum(group * TILES + gl.arange(0, TILES, gl.SliceLayout(1, FLAT)), num_tiles - 1).to(gl.int64)
    word = gl.arange(0, 2 * WORDS, gl.SliceLayout(0, FLAT))
    word = gl.where((word >= WORDS) & (2 * turn + 1 == num_blocks), word - WORDS, word)
    places = gl.expand_dims((tile * num_blocks + 2 * turn) * WORDS, 1) + gl.expand_dims(word, 0)
    copy_to_shared(code_tiles.index(stage), codes + places)

    # Words of scales of four chunks for each g, and two of coarse ones, twice. Groups may be wider than a chunk.
    tile = gl.arange(0, TILES, gl.SliceLayout(1, gl.SliceLayout(2, QUADS)))
    tile = gl.minimum(group * TILES + tile, num_tiles - 1).to(gl.int64)
    first = tile * words_of_tile(num_blocks, GROUPS, BLOCKS_OF_SCALE, LEVELS)
    member = axis_of_three(8, 1, QUADS)
    number = axis_of_three(scale_tiles.shape[3], 2, QUADS)
    block = gl.minimum(2 * turn + number % 4 // 2, num_blocks - 1)
    place = offset_of_scales(block, GROUPS, BLOCKS_OF_SCALE, LEVELS) + member * GROUPS + number % 2 * GROUPS // 2
    if LEVELS > 0:
        coarse = offset_of_coarse(2 * turn, LEVELS) + member * LEVELS + number % 2 * (LEVELS - 1)
        place = gl.where(number >= 4, coarse, place)
    copy_to_shared(scale_tiles.index(stage), scales + (gl.expand_dims(gl.expand_dims(first, 1), 2) + place))


@gluon.jit
def values_of_chunk(
    codes, word, coarse, SCALE_DTYPE: gl.constexpr, LEVELS: gl.constexpr, IS_NARROW: gl.constexpr,
):  # fmt: skip
    """[tiles, g, t, sides, pairs, numbers, halves] of words of codes, a word of scales and coarse ones."""
    # Beside the code in the numbers that `dequantize_bytes` makes of it. Times a scale this is exact, but for codes of
    # eight bits with coarse scales, which files do not have; less a minimum it is rounded where values are far below.
    MIDDLE: gl.constexpr = 192.0 if IS_NARROW else 32896.0
    if LEVELS == 0:
        upper, lower = unpack_scales(word, SCALE_DTYPE)
        scales = (upper, lower, upper, lower)
        offsets = (upper * -MIDDLE, lower * -MIDDLE, upper * -MIDDLE, lower * -MIDDLE)
    elif LEVELS == 1:
        scales = scales_of_bytes(word, coarse, SIGNED_MIDDLE)
        offsets = (scales[0] * -MIDDLE, scales[1] * -MIDDLE, scales[2] * -MIDDLE, scales[3] * -MIDDLE)
    else:
        upper, lower, upper_minimum, lower_minimum = scales_of_bytes(word, coarse, 0)
        scales = (upper, lower, upper, lower)
        upper_offset = upper * -MIDDLE + upper_minimum
        lower_offset = lower * -MIDDLE + lower_minimum
        offsets = (upper_offset, lower_offset, upper_offset, lower_offset)
    upper = gl.join(
        dequantize_bytes(codes[0], scales[0], offsets[0], IS_NARROW),
        dequantize_bytes(codes[1], scales[2], offsets[2], IS_NARROW),
    )
    lower = gl.join(
        dequantize_bytes(codes[2], scales[1], offsets[1], IS_NARROW),
        dequantize_bytes(codes[3], scales[3], offsets[3], IS_NARROW),
    )
    return gl.join(upper, lower)


@gluon.jit
def load_nothing(targets, stage, NUMBER: gl.constexpr, FORMAT: gl.constexpr, TILES: gl.constexpr):
    """Loads nothing ahead: both blocks of a turn together would take too many registers."""
    return stage


@gluon.jit
def values_of(
    _held, tiles, stage, NUMBER: gl.constexpr, FORMAT: gl.constexpr, TILES: gl.constexpr, LEFT: gl.constexpr,
):  # fmt: skip
    """[16 outputs of each tile, inputs] of one of a turn's blocks, as the left operand of a product."""
    SCALE_DTYPE: gl.constexpr = FORMAT[0]
    LEVELS: gl.constexpr = FORMAT[3]
    IS_NARROW: gl.constexpr = FORMAT[4]
    FLAT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [TILES, 1], [1, 0])
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 8, 4], [TILES, 1, 1], [2, 1, 0])
    codes, scales = tiles
    words = codes.index(stage).slice(NUMBER * WORDS, WORDS, 1).load(FLAT)
    chunks = gl.split(gl.permute(gl.reshape(words, [TILES, 2, 8, 4, 4]), (0, 2, 3, 4, 1)))
    first_codes, second_codes = words_of(chunks[0], SINGLES), words_of(chunks[1], SINGLES)
    first_scales, second_scales = load_pair(scales.index(stage).slice(2 * NUMBER, 2, 2), TILES, SINGLES)
    coarse = (first_scales, second_scales)
    if LEVELS > 0:
        first_coarse, second_coarse = load_pair(scales.index(stage).slice(4, 2, 2), TILES, SINGLES)
        coarse = factors_of(first_coarse, second_coarse, LEVELS)
    first = values_of_chunk(first_codes, first_scales, coarse, SCALE_DTYPE, LEVELS, IS_NARROW)
    second = values_of_chunk(second_codes, second_scales, coarse, SCALE_DTYPE, LEVELS, IS_NARROW)
    return left_operand(first, second, TILES, LEFT)


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["gated_stride", "num_rows", "num_tiles", "num_blocks"])
def wide_kernel(
    x,  # [groups of rows, turns, rows, two blocks], in the order of codes
    codes,
    scales,
    gated,
    output,
    partial_sums,  # two of each program
    arrivals,
    gated_stride,
    num_rows,
    num_tiles,
    num_blocks,
    IS_GATED: gl.constexpr,  # GeGLU
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    SCALE_DTYPE: gl.constexpr,  # of scales that have no coarse ones
    GROUPS: gl.constexpr,  # words of scales of a block
    BLOCKS_OF_SCALE: gl.constexpr,  # that share them
    LEVELS: gl.constexpr,  # words of coarse scales. 1: groups have 16 inputs; 2: there are minimums
    IS_NARROW: gl.constexpr,  # codes have 64 added
    ROWS: gl.constexpr,
    TILES: gl.constexpr,  # of 16 outputs; a warp for each
    STAGES: gl.constexpr,  # turns in shared memory
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    PLAIN_2: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    PLAIN_3: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    FORMAT: gl.constexpr = (SCALE_DTYPE, GROUPS, BLOCKS_OF_SCALE, LEVELS, IS_NARROW)
    code_tiles = allocate_shared_memory(gl.int32, [STAGES, TILES, 2 * WORDS], PLAIN_2)
    scale_tiles = allocate_shared_memory(gl.int32, [STAGES, TILES, 8, 4 if LEVELS == 0 else 8], PLAIN_3)
    multiply_turns(
        x, (codes, scales), (code_tiles, scale_tiles), None, gated, output, partial_sums, arrivals,
        gated_stride, num_rows, num_tiles, num_blocks, gl.cdiv(num_blocks, 2),
        IS_GATED, HAS_GATED_INPUT, copy_turn, load_nothing, values_of, FORMAT, ROWS, TILES, STAGES, 2, IS_DEPENDENT,
    )  # fmt: skip
