"""Products of few rows with matrices of eight bits whose inputs are not rounded, in Gluon: bound by reading the codes
once.

Tensor cores multiply 16 outputs x 16 inputs by 16 inputs x 8 rows (`mma.sync`). Which input is which of the 16 is free,
if it is the same on both sides: so a thread loads 16 codes that lie side by side, and they are what it hands over in
four products. Codes never pass through shared memory. A word of four becomes two registers of two bfloat16 numbers in
eight instructions, exactly.

Tensors are [threads, tiles, 1], as in `shuffled/tiles.py`: thread 4 g + t of a warp holds outputs g and g + 8 of each
tile of 16 that the warp multiplies, and row g of x. Sums are added in the order of the inputs, whatever the number of
rows: a row's result is the same bits in any company.
"""

from facet.kernels.quantized.eight_bits.language import (
    add_codes,
    gl,
    gluon,
    let_next_start,
    stay_in_order,
    wait_for_previous,
)
from facet.kernels.quantized.shuffled.tiles import axis, places_of_sums, words_of

BLOCK_IN = gl.constexpr(128)  # inputs of a turn: a line of memory from each output
WORDS = gl.constexpr(32)  # of four codes, in a block


@gluon.jit
def load_block(places, turn, NUM_IN: gl.constexpr):
    """Vectors of 16 codes: the first of outputs g, their second, 64 inputs on, and both of outputs g + 8.

    Beyond the last inputs these are read again, which needs no mask: x has zeros there.
    """
    upper, lower, column = places
    NUM_WORDS: gl.constexpr = NUM_IN // 4
    if NUM_IN % BLOCK_IN == 0:
        word = gl.minimum(turn * WORDS, NUM_WORDS - WORDS) + column
        second = word + WORDS // 2
    else:
        word = gl.minimum(turn * WORDS + column, NUM_WORDS - 4)
        second = gl.minimum(turn * WORDS + WORDS // 2 + column, NUM_WORDS - 4)
    return (
        gl.load(upper + word, eviction_policy="evict_first"),
        gl.load(upper + second, eviction_policy="evict_first"),
        gl.load(lower + word, eviction_policy="evict_first"),
        gl.load(lower + second, eviction_policy="evict_first"),
    )


@gluon.jit
def add_block(
    sums, block, inputs, turn, NUM_IN: gl.constexpr, IS_RAGGED: gl.constexpr, IS_INTEGER: gl.constexpr,
    SINGLES: gl.constexpr,
):  # fmt: skip
    """Sums plus the products of a block."""
    x_places, is_row, place = inputs
    for half in gl.static_range(2):
        first = turn * BLOCK_IN + half * (BLOCK_IN // 2)
        is_live = is_row
        if IS_RAGGED:
            is_live = is_live & (first + place < NUM_IN)
        upper, lower = words_of(block[half], SINGLES), words_of(block[2 + half], SINGLES)
        x = words_of(gl.load(x_places + first // 2, mask=is_live, other=0), SINGLES)
        sums = add_codes(sums, upper[0], lower[0], x[0], x[1], IS_INTEGER)
        sums = add_codes(sums, upper[1], lower[1], x[2], x[3], IS_INTEGER)
        x = words_of(gl.load(x_places + (first // 2 + 4), mask=is_live, other=0), SINGLES)
        sums = add_codes(sums, upper[2], lower[2], x[0], x[1], IS_INTEGER)
        sums = add_codes(sums, upper[3], lower[3], x[2], x[3], IS_INTEGER)
    return sums


# One compilation serves all row counts, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["num_rows"])
def few_rows_kernel(
    x,  # int32: two bfloat16 numbers each
    codes,  # int32: four each
    scales,
    output,
    x_stride,
    code_stride,
    scale_stride,
    num_rows,
    num_out,
    NUM_IN: gl.constexpr,
    IS_INTEGER: gl.constexpr,  # int8, else fp8
    TILES: gl.constexpr,  # of 16 outputs, of a warp
    NUM_WARPS: gl.constexpr,
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    VECTORS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [32, 1, 1, 1], [NUM_WARPS, 1, 1, 1], [3, 2, 1, 0])
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [32, 1, 1], [NUM_WARPS, 1, 1], [2, 1, 0])
    NUM_TURNS: gl.constexpr = (NUM_IN + BLOCK_IN - 1) // BLOCK_IN
    IS_RAGGED: gl.constexpr = NUM_IN % (2 * BLOCK_IN) != 0

    # Programs that share tiles run side by side: one reads them from memory, the others from the cache.
    num_row_groups = gl.cdiv(num_rows, 8)
    first_row = gl.program_id(0) % num_row_groups * 8
    first_tile = gl.program_id(0) // num_row_groups * (TILES * NUM_WARPS)
    thread = axis(32 * NUM_WARPS, 0, VECTORS)
    lane = thread % 32
    out = (first_tile + thread // 32 * TILES + axis(TILES, 1, VECTORS)) * 16 + lane // 4
    # Beyond the last output that one is read again, which needs no mask; the store drops the result.
    word = axis(4, 3, VECTORS)
    upper = codes + gl.minimum(out, num_out - 1).to(gl.int64) * code_stride + word
    lower = codes + gl.minimum(out + 8, num_out - 1).to(gl.int64) * code_stride + word
    places = (upper, lower, lane % 4 * 4)
    # Codes are on their way while x is still being computed.
    even_block = load_block(places, 0, NUM_IN)
    tile, member, row = places_of_sums(first_tile, TILES, 1, NUM_WARPS, 1)
    column = tile * 16 + member
    upper_scale = gl.load(scales + gl.minimum(column, num_out - 1) * scale_stride).to(gl.float32)
    lower_scale = gl.load(scales + gl.minimum(column + 8, num_out - 1) * scale_stride).to(gl.float32)
    wait_for_previous(IS_DEPENDENT)
    x_row, place = first_row + lane // 4, lane % 4 * 16  # of the first of a thread's 16 inputs
    inputs = (x + x_row * x_stride + place // 2 + word, x_row < num_rows, place)

    zeros = gl.zeros([32 * NUM_WARPS, TILES, 1], gl.float32, SINGLES)
    sums = (zeros, zeros, zeros, zeros)
    for turn in range(0, NUM_TURNS, 2):
        # Two turns, so that a block stays in the registers into which it was loaded.
        odd_block = load_block(places, turn + 1, NUM_IN)
        stay_in_order()
        sums = add_block(sums, even_block, inputs, turn, NUM_IN, IS_RAGGED, IS_INTEGER, SINGLES)
        even_block = load_block(places, turn + 2, NUM_IN)
        stay_in_order()
        sums = add_block(sums, odd_block, inputs, turn + 1, NUM_IN, IS_RAGGED, IS_INTEGER, SINGLES)

    row = first_row + row
    stored = output + row.to(gl.int64) * num_out + column
    DTYPE: gl.constexpr = output.dtype.element_ty
    is_upper, is_lower = column < num_out, column + 8 < num_out
    is_first, is_second = row < num_rows, row + 1 < num_rows
    gl.store(stored, (sums[0] * upper_scale).to(DTYPE), mask=is_first & is_upper)
    gl.store(stored + num_out, (sums[1] * upper_scale).to(DTYPE), mask=is_second & is_upper)
    gl.store(stored + 8, (sums[2] * lower_scale).to(DTYPE), mask=is_first & is_lower)
    gl.store(stored + (num_out + 8), (sums[3] * lower_scale).to(DTYPE), mask=is_second & is_lower)
