"""Products of tens of rows with matrices of shuffled 8-bit codes, in Gluon, by the large products of Hopper.

As in `int4/wide_kernel.py`, a warp brings a block of its tile's codes to bfloat16 values in the registers from which
`wgmma` takes its left operand, and the right operand is rows of x in shared memory, the same for all warps. Values are
rounded once, as those of `dequantize.py` are. Codes, scales and x come to shared memory by copies that run some turns
ahead. Tensor cores multiply by one block while the next becomes values: it has registers of its own.

Such a program takes a whole multiprocessor, or half of one, and tiles rarely go evenly into those. So programs divide
turns, not tiles: each has as many of them as the others, of one tile group after another, wherever its first one lies.
Where programs share a tile group, the last to arrive adds what each of them has, in their order.
"""

from facet.kernels.quantized.int4.tiles import words_of
from facet.kernels.quantized.int4.wide_kernel import finish
from facet.kernels.quantized.int8_groups.language import (
    allocate_shared_memory,
    commit_copies,
    copy_to_shared,
    dequantize_bytes,
    fence_async_shared,
    gl,
    gluon,
    let_next_start,
    scales_of_bytes,
    thread_barrier,
    unpack_scales,
    wait_for_copies,
    wait_for_previous,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from facet.kernels.quantized.int8_groups.tiles import (
    BLOCK_IN,
    SIGNED_MIDDLE,
    WORDS,
    factors_of,
    offset_of_coarse,
    offset_of_scales,
    words_of_tile,
)


@gluon.jit
def copy_turn(
    sources, targets, stage, group, turn, num_tiles, num_blocks,
    GROUPS: gl.constexpr, BLOCKS_OF_SCALE: gl.constexpr, LEVELS: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """Starts the copies of two blocks of every tile of a group, and of their scales. Where there is no second block,
    the first takes its place: x has zeros there."""
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
    member = gl.expand_dims(gl.expand_dims(gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(2, QUADS))), 0), 2)
    number = gl.arange(0, scale_tiles.shape[3], gl.SliceLayout(0, gl.SliceLayout(1, QUADS)))
    number = gl.expand_dims(gl.expand_dims(number, 0), 1)
    block = gl.minimum(2 * turn + number % 4 // 2, num_blocks - 1)
    place = offset_of_scales(block, GROUPS, BLOCKS_OF_SCALE, LEVELS) + member * GROUPS + number % 2 * GROUPS // 2
    if LEVELS > 0:
        coarse = offset_of_coarse(2 * turn, LEVELS) + member * LEVELS + number % 2 * (LEVELS - 1)
        place = gl.where(number >= 4, coarse, place)
    copy_to_shared(scale_tiles.index(stage), scales + (gl.expand_dims(gl.expand_dims(first, 1), 2) + place))


@gluon.jit
def load_pair(words, TILES: gl.constexpr, SINGLES: gl.constexpr):
    """[tiles, g, 2] of shared memory, as two of [tiles, g, 1]."""
    PAIRS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 2], [1, 8, 4, 1], [TILES, 1, 1, 1], [3, 2, 1, 0])
    first, second = gl.split(gl.expand_dims(words.load(gl.SliceLayout(2, PAIRS)), 2))
    first = gl.convert_layout(first, SINGLES, assert_trivial=True)
    second = gl.convert_layout(second, SINGLES, assert_trivial=True)
    return first, second


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
def values_of(
    tiles, stage, NUMBER: gl.constexpr,
    SCALE_DTYPE: gl.constexpr, LEVELS: gl.constexpr, IS_NARROW: gl.constexpr, TILES: gl.constexpr, LEFT: gl.constexpr,
):  # fmt: skip
    """[16 outputs of each tile, inputs] of one of a turn's blocks, as the left operand of a product."""
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
    values = gl.join(
        values_of_chunk(first_codes, first_scales, coarse, SCALE_DTYPE, LEVELS, IS_NARROW),
        values_of_chunk(second_codes, second_scales, coarse, SCALE_DTYPE, LEVELS, IS_NARROW),
    )
    # [tiles, halves, g, chunks, products of a chunk, halves of its inputs, t, sides]
    values = gl.permute(values, (0, 6, 1, 7, 5, 4, 2, 3))
    return gl.convert_layout(gl.reshape(values, [16 * TILES, BLOCK_IN]), LEFT, assert_trivial=True)


@gluon.jit
def multiply(sums, values, x, NUMBER: gl.constexpr):
    """Starts the product with one of a turn's blocks."""
    return warpgroup_mma(values, x.slice(NUMBER * BLOCK_IN, BLOCK_IN, 1).permute((1, 0)), sums, is_async=True)


@gluon.jit
def next_turn(group, turn, num_turns):
    """Of all turns of a tile group, then of the next."""
    is_last = turn + 1 == num_turns
    return gl.where(is_last, group + 1, group), gl.where(is_last, 0, turn + 1)


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
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [TILES, 1], [16, ROWS, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    INPUTS: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [TILES, 1], [1, 0])
    PLAIN_2: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    PLAIN_3: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    TILE_OF_X: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, 2 * BLOCK_IN], gl.bfloat16)

    # Programs of the same codes and other rows run side by side: one reads codes from memory, others from the cache.
    num_row_groups = gl.cdiv(num_rows, ROWS)
    row_group = gl.program_id(0) % num_row_groups
    program = gl.program_id(0) // num_row_groups
    num_programs = gl.num_programs(0) // num_row_groups
    num_turns = gl.cdiv(num_blocks, 2)  # of a tile group
    num_all = gl.cdiv(num_tiles, TILES) * num_turns
    first, end = program * num_all // num_programs, (program + 1) * num_all // num_programs

    SIZE_OF_X: gl.constexpr = ROWS * 2 * BLOCK_IN
    row = gl.arange(0, ROWS, gl.SliceLayout(1, INPUTS)) * (2 * BLOCK_IN)
    column = gl.arange(0, 2 * BLOCK_IN, gl.SliceLayout(0, INPUTS))
    place_in_x = gl.expand_dims(row, 1) + gl.expand_dims(column, 0)
    x += row_group * num_turns * SIZE_OF_X

    code_tiles = allocate_shared_memory(gl.int32, [STAGES, TILES, 2 * WORDS], PLAIN_2)
    scale_tiles = allocate_shared_memory(gl.int32, [STAGES, TILES, 8, 4 if LEVELS == 0 else 8], PLAIN_3)
    x_tiles = allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, 2 * BLOCK_IN], TILE_OF_X)
    sources, targets = (codes, scales), (code_tiles, scale_tiles)

    # Codes and scales are on their way while x is still being computed.
    ahead_group, ahead_turn = first // num_turns, first % num_turns
    for ahead in gl.static_range(STAGES - 1):
        if first + ahead < end:
            copy_turn(
                sources, targets, ahead, ahead_group, ahead_turn, num_tiles, num_blocks,
                GROUPS, BLOCKS_OF_SCALE, LEVELS, TILES,
            )  # fmt: skip
        ahead_group, ahead_turn = next_turn(ahead_group, ahead_turn, num_turns)
    wait_for_previous(IS_DEPENDENT)
    for ahead in gl.static_range(STAGES - 1):
        if first + ahead < end:
            copy_to_shared(x_tiles.index(ahead), x + (first + ahead) % num_turns * SIZE_OF_X + place_in_x)
        commit_copies()
    wait_for_copies(STAGES - 2)
    thread_barrier()

    # Tensor cores multiply by one block while the next comes to other registers.
    for group in range(first // num_turns, (end - 1) // num_turns + 1):
        first_of_group, end_of_group = gl.maximum(first, group * num_turns), gl.minimum(end, (group + 1) * num_turns)
        stage = (first_of_group - first) % STAGES
        even = values_of(targets, stage, 0, SCALE_DTYPE, LEVELS, IS_NARROW, TILES, LEFT)
        odd = even
        sums = gl.zeros([16 * TILES, ROWS], gl.float32, SUMS)
        for turn in range(first_of_group, end_of_group):
            stage = (turn - first) % STAGES
            fence_async_shared()
            product = multiply(sums, even, x_tiles.index(stage), 0)
            sums, _ = warpgroup_mma_wait(1, deps=(product, odd))
            odd = values_of(targets, stage, 1, SCALE_DTYPE, LEVELS, IS_NARROW, TILES, LEFT)
            product = multiply(sums, odd, x_tiles.index(stage), 1)
            sums, _ = warpgroup_mma_wait(1, deps=(product, even))
            # The barrier also says that everyone has done with the turn before, into whose place another is copied.
            wait_for_copies(STAGES - 3)
            thread_barrier()
            if turn + (STAGES - 1) < end:
                free = (turn - first + (STAGES - 1)) % STAGES
                copy_turn(
                    sources, targets, free, ahead_group, ahead_turn, num_tiles, num_blocks,
                    GROUPS, BLOCKS_OF_SCALE, LEVELS, TILES,
                )  # fmt: skip
                copy_to_shared(x_tiles.index(free), x + ahead_turn * SIZE_OF_X + place_in_x)
            commit_copies()
            ahead_group, ahead_turn = next_turn(ahead_group, ahead_turn, num_turns)
            even = values_of(targets, (turn - first + 1) % STAGES, 0, SCALE_DTYPE, LEVELS, IS_NARROW, TILES, LEFT)
        sums, _ = warpgroup_mma_wait(0, deps=(sums, odd))
        is_last = True
        if end_of_group - first_of_group < num_turns:
            sums, is_last = add_up(
                sums, partial_sums, arrivals, group, row_group, program, group * num_turns < first, num_all, num_turns,
                num_programs, num_row_groups, ROWS, TILES,
            )  # fmt: skip
        if is_last:
            finish(
                sums, row_group * ROWS, group * TILES, gated, output, gated_stride, num_rows, num_tiles,
                IS_GATED, HAS_GATED_INPUT, ROWS, TILES,
            )  # fmt: skip
    wait_for_copies(0)


@gluon.jit
def add_up(
    sums, partial_sums, arrivals, group, row_group, program, starts_late, num_all, num_turns, num_programs,
    num_row_groups, ROWS: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """Sums of a tile group that programs share, where all of them have arrived, and whether they have.

    Each of them stores its own. All but the first of them started late. A program has two places, because it may share
    two tile groups: the one that it started late, and one at its end.
    """
    SIZE: gl.constexpr = 16 * TILES * ROWS
    # At a time, as far as there are registers for what is on its way.
    NUM: gl.constexpr = 2 if ROWS <= 64 else 1
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [TILES, 1], [16, ROWS, 16])
    output_in_tile = gl.arange(0, 16 * TILES, gl.SliceLayout(1, SUMS))
    row_in_tile = gl.arange(0, ROWS, gl.SliceLayout(0, SUMS))
    places = partial_sums + (gl.expand_dims(output_in_tile * ROWS, 1) + gl.expand_dims(row_in_tile, 0))
    # Those that have its first turn and its last: the largest whose own first turn comes no later.
    earliest = ((group * num_turns + 1) * num_programs - 1) // num_all
    latest = ((group + 1) * num_turns * num_programs - 1) // num_all
    own = (program * num_row_groups + row_group) * 2 + gl.where(starts_late, 0, 1)
    gl.store(places + own.to(gl.int64) * SIZE, sums)
    # As in arrivals.py.
    thread_barrier()
    counter = arrivals + group * num_row_groups + row_group
    is_last = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == latest - earliest
    if is_last:
        gl.store(counter, 0)
        sums = gl.zeros([16 * TILES, ROWS], gl.float32, SUMS)
        for each in range(earliest, latest + 1, NUM):
            theirs = (each * num_row_groups + row_group) * 2 + gl.where(each == earliest, 1, 0)
            some = gl.load(places + theirs.to(gl.int64) * SIZE, cache_modifier=".cg")
            if NUM == 2:
                theirs = (gl.minimum(each + 1, latest) * num_row_groups + row_group) * 2
                others = gl.load(places + theirs.to(gl.int64) * SIZE, cache_modifier=".cg")
                sums += some
                some = gl.where(each < latest, others, 0.0)
            sums += some
    return sums, is_last
