"""Products of tens of rows with matrices of shuffled 4-bit codes, in Gluon, by the large products of Hopper.

The loop is in `shuffled/wide_loop.py`: a turn has one block of a tile, or two. The words of a block lie beside each
other for a thread, so it comes to registers as a whole, and half of it waits there.
"""

from facet.kernels.quantized.int4.codes import dequantize_codes, dequantize_fp4, dequantize_less_minimums, offset_of
from facet.kernels.quantized.int4.tiles import WORDS
from facet.kernels.quantized.shuffled.language import allocate_shared_memory, copy_to_shared, gl, gluon, let_next_start
from facet.kernels.quantized.shuffled.scales import scales_of_bytes, unpack_scales
from facet.kernels.quantized.shuffled.tiles import axis_of_three, words_of
from facet.kernels.quantized.shuffled.wide_loop import left_operand, load_pair, multiply_turns


@gluon.jit
def copy_turn(
    sources, targets, stage, group, turn, num_tiles, num_blocks, FORMAT: gl.constexpr, TILES: gl.constexpr
):  # fmt: skip
    """Starts the copies of some blocks of every tile of a group, of their scales, and of zeros or coarse scales. Where
    there is no second block, the first takes its place: x has zeros there."""
    SCALE_DTYPE: gl.constexpr = FORMAT[0]
    HAS_ZEROS: gl.constexpr = FORMAT[1]
    GROUPS: gl.constexpr = FORMAT[2]
    BLOCKS: gl.constexpr = FORMAT[4]
    codes, scales, others = sources
    code_tiles, scale_tiles, other_tiles = targets
    FLAT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [TILES, 1], [1, 0])
    QUADS: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 8, 4], [TILES, 1, 1], [2, 1, 0])
    # Beyond the last tile that one is read again, which needs no mask; the store drops the result.
    tile = gl.minimum(group * TILES + gl.arange(0, TILES, gl.SliceLayout(1, FLAT)), num_tiles - 1).to(gl.int64)
    word = gl.arange(0, BLOCKS * WORDS, gl.SliceLayout(0, FLAT))
    if BLOCKS == 2:
        word = gl.where((word >= WORDS) & (2 * turn + 1 == num_blocks), word - WORDS, word)
    places = gl.expand_dims((tile * num_blocks + BLOCKS * turn) * WORDS, 1) + gl.expand_dims(word, 0)
    copy_to_shared(code_tiles.index(stage), codes + places)

    # Words of four chunks for each g. Groups may be wider than a chunk.
    tile = gl.arange(0, TILES, gl.SliceLayout(1, gl.SliceLayout(2, QUADS)))
    tile = gl.minimum(group * TILES + tile, num_tiles - 1).to(gl.int64)
    first = gl.expand_dims(gl.expand_dims(tile * num_blocks, 1), 2)
    member = axis_of_three(8, 1, QUADS)
    number = axis_of_three(4 * BLOCKS, 2, QUADS)
    block = first + gl.minimum(BLOCKS * turn + number // 4, num_blocks - 1)
    pair = member * GROUPS + number % 4 * GROUPS // 4
    copy_to_shared(scale_tiles.index(stage), scales + (block * (8 * GROUPS) + pair))
    if HAS_ZEROS:
        # A word of zeros is of two pairs, so two of a block for each g are all there are.
        number = axis_of_three(2 * BLOCKS, 2, QUADS)
        block = first + gl.minimum(BLOCKS * turn + number // 2, num_blocks - 1)
        pair = member * GROUPS + number % 2 * GROUPS // 2
        copy_to_shared(other_tiles.index(stage), others + (block * (4 * GROUPS) + pair // 2))
    elif gl.uint8 == SCALE_DTYPE:
        half = axis_of_three(2, 2, QUADS)
        pairs = gl.expand_dims(gl.expand_dims((tile * gl.cdiv(num_blocks, 2) + BLOCKS * turn // 2) * 16, 1), 2)
        copy_to_shared(other_tiles.index(stage), others + (pairs + member * 2 + half))


@gluon.jit
def load_quad(words, TILES: gl.constexpr, SINGLES: gl.constexpr):
    """[tiles, g, 4] of shared memory, as four of [tiles, g, 1]."""
    QUADS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [1, 8, 4, 1], [TILES, 1, 1, 1], [3, 2, 1, 0])
    return words_of(gl.expand_dims(words.load(gl.SliceLayout(2, QUADS)), 2), SINGLES)


@gluon.jit
def load_block(targets, stage, NUMBER: gl.constexpr, FORMAT: gl.constexpr, TILES: gl.constexpr):
    """Words of codes of outputs g and of g + 8 for the four chunks, words of scales, and others."""
    SCALE_DTYPE: gl.constexpr = FORMAT[0]
    HAS_ZEROS: gl.constexpr = FORMAT[1]
    FLAT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [TILES, 1], [1, 0])
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 8, 4], [TILES, 1, 1], [2, 1, 0])
    codes, scales, others = targets
    words = codes.index(stage).slice(NUMBER // 2 * WORDS, WORDS, 1).load(FLAT)
    halves = gl.split(gl.permute(gl.reshape(words, [TILES, 2, 8, 4, 4]), (0, 2, 3, 4, 1)))
    fine = load_quad(scales.index(stage).slice(2 * NUMBER, 4, 2), TILES, SINGLES)
    rest = (fine[0], fine[1])
    if HAS_ZEROS:
        rest = load_pair(others.index(stage).slice(NUMBER, 2, 2), TILES, SINGLES)
    elif gl.uint8 == SCALE_DTYPE:
        rest = load_pair(others.index(stage), TILES, SINGLES)
    return words_of(halves[0], SINGLES), words_of(halves[1], SINGLES), fine, rest


@gluon.jit
def values_of(
    held, _targets, _stage, NUMBER: gl.constexpr, FORMAT: gl.constexpr, TILES: gl.constexpr, LEFT: gl.constexpr
):  # fmt: skip
    """The values of two of a block's chunks, as the left operand of a product."""
    first = values_of_chunk(held, NUMBER % 2 * 2, FORMAT)
    second = values_of_chunk(held, NUMBER % 2 * 2 + 1, FORMAT)
    return left_operand(first, second, TILES, LEFT)


@gluon.jit
def values_of_chunk(held, CHUNK: gl.constexpr, FORMAT: gl.constexpr):
    """[tiles, g, t, sides, halves of a product's inputs, products, halves of a tile]"""
    SCALE_DTYPE: gl.constexpr = FORMAT[0]
    HAS_ZEROS: gl.constexpr = FORMAT[1]
    GROUPS: gl.constexpr = FORMAT[2]
    TILES: gl.constexpr = FORMAT[3]
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 8, 4], [TILES, 1, 1], [2, 1, 0])
    upper, lower, fine, rest = held[0][CHUNK], held[1][CHUNK], held[2], held[3]
    if gl.float8e4nv == SCALE_DTYPE:
        # The scales of threads 0 and 1, and of the others.
        is_first = axis_of_three(4, 2, SINGLES) < 2
        upper_scale = gl.where(is_first, fine[0], fine[2]) >> 8 * CHUNK & 127
        lower_scale = gl.where(is_first, fine[1], fine[3]) >> 8 * CHUNK & 127
        values = gl.join(dequantize_fp4(upper, upper_scale), dequantize_fp4(lower, lower_scale))
    elif gl.uint8 == SCALE_DTYPE:
        upper_scale, upper_minimum = unpack_scales(rest[0], gl.float16)
        lower_scale, lower_minimum = unpack_scales(rest[1], gl.float16)
        coarse = (upper_scale, -upper_minimum, lower_scale, -lower_minimum)
        scales = scales_of_bytes(fine[CHUNK], coarse, 0)
        values = gl.join(
            dequantize_less_minimums(upper, scales[0], scales[0] * -128.0 + scales[1]),
            dequantize_less_minimums(lower, scales[2], scales[2] * -128.0 + scales[3]),
        )
    else:
        upper_offset = offset_of(8)
        lower_offset = upper_offset
        if HAS_ZEROS:
            pair = rest[CHUNK // 2] >> (axis_of_three(8, 1, SINGLES) * GROUPS + CHUNK * GROUPS // 4) % 2 * 16
            upper_offset, lower_offset = offset_of(pair & 255), offset_of(pair >> 8 & 255)
        values = gl.join(
            dequantize_codes(upper, fine[CHUNK], upper_offset + 0 * upper, 0, SCALE_DTYPE),
            dequantize_codes(lower, fine[CHUNK], lower_offset + 0 * lower, 1, SCALE_DTYPE),
        )
    return values


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["gated_stride", "num_rows", "num_tiles", "num_blocks"])
def wide_kernel(
    x,  # [groups of rows, turns, rows, inputs of a turn], in the order of codes
    codes,
    scales,
    others,  # words of zeros, or of coarse scales and minimums beside scales of uint8
    factors,  # of whole rows; None: there are none
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
    SCALE_DTYPE: gl.constexpr,
    HAS_ZEROS: gl.constexpr,  # else 8
    GROUPS: gl.constexpr,  # of a block
    ROWS: gl.constexpr,
    TILES: gl.constexpr,  # of 16 outputs; a warp for each
    BLOCKS: gl.constexpr,  # of a turn
    STAGES: gl.constexpr,  # turns in shared memory
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    PLAIN_2: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    PLAIN_3: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    FORMAT: gl.constexpr = (SCALE_DTYPE, HAS_ZEROS, GROUPS, TILES, BLOCKS)
    code_tiles = allocate_shared_memory(gl.int32, [STAGES, TILES, BLOCKS * WORDS], PLAIN_2)
    scale_tiles = allocate_shared_memory(gl.int32, [STAGES, TILES, 8, 4 * BLOCKS], PLAIN_3)
    other_tiles = scale_tiles
    if HAS_ZEROS:
        other_tiles = allocate_shared_memory(gl.int32, [STAGES, TILES, 8, 2 * BLOCKS], PLAIN_3)
    elif gl.uint8 == SCALE_DTYPE:
        other_tiles = allocate_shared_memory(gl.int32, [STAGES, TILES, 8, 2], PLAIN_3)
    multiply_turns(
        x, (codes, scales, others), (code_tiles, scale_tiles, other_tiles), factors, gated, output, partial_sums,
        arrivals, gated_stride, num_rows, num_tiles, num_blocks, gl.cdiv(num_blocks, BLOCKS),
        IS_GATED, HAS_GATED_INPUT, copy_turn, load_block, values_of, FORMAT, ROWS, TILES, STAGES, 2 * BLOCKS,
        IS_DEPENDENT,
    )  # fmt: skip
