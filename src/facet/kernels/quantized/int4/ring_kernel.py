"""Products of up to 8 rows with matrices of shuffled 4-bit codes that come through a ring, in Gluon.

A program multiplies as those of `few_rows_kernel.py` do, and adds in their order: the same bits. Codes and scales come
by another way:

    memory ──► ring of STAGES turns ──► registers of this turn ──► sums

As many turns as the ring holds, but one, are on their way before the kernel waits for the one before it: while others
norm and attend, the multiprocessors already read what comes next. And registers need not hold what is on its way, so
that more programs fit on a multiprocessor: all of a product's, at best.
"""

from facet.kernels.quantized.int4.language import (
    allocate_shared_memory,
    commit_copies,
    copy_to_shared,
    gl,
    gluon,
    let_next_start,
    thread_barrier,
    wait_for_copies,
    wait_for_previous,
)
from facet.kernels.quantized.int4.tiles import (
    BLOCK_IN,
    CHUNK,
    WORDS,
    add_chunk,
    axis,
    places_of_tiles,
    store_sums,
    sums_of_warps,
    words_of,
)


@gluon.constexpr_function
def scale_copies(num_warps, tiles, groups):
    """Of [warps, tiles, g, chunks]: as many bytes at once as leave work for all threads of a warp."""
    if groups < 4 or tiles == 1:
        return gl.BlockedLayout([1, 1, 1, 1], [1, 1, 8, 4], [num_warps, 1, 1, 1], [3, 2, 1, 0])
    words = min(4, tiles)
    return gl.BlockedLayout([1, 1, 1, words], [1, words, 8, 4 // words], [num_warps, 1, 1, 1], [3, 2, 1, 0])


@gluon.jit
def places_of_scales(
    scales, first_tile, num_tiles, num_blocks,
    GROUPS: gl.constexpr, TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr,
):  # fmt: skip
    """(places, warps among those that divide inputs), of the first turn. Groups may be wider than a chunk."""
    COPIES: gl.constexpr = scale_copies(NUM_OUT_WARPS * NUM_IN_WARPS, TILES, GROUPS)
    warp = axis(NUM_OUT_WARPS * NUM_IN_WARPS, 0, COPIES)
    in_warp = warp // NUM_OUT_WARPS
    chunk = axis(4, 3, COPIES)
    if GROUPS < 4:
        chunk = chunk * GROUPS // 4
    tile = first_tile + warp % NUM_OUT_WARPS * TILES + axis(TILES, 1, COPIES)
    first_block = gl.minimum(tile, num_tiles - 1).to(gl.int64) * num_blocks + in_warp
    return scales + first_block * (8 * GROUPS) + axis(8, 2, COPIES) * GROUPS + chunk, in_warp


@gluon.jit
def copy_turn(places, ring, stage, turn, num_blocks, NUM_IN_WARPS: gl.constexpr, GROUPS: gl.constexpr):
    """Starts the copies of the blocks of a turn; after the last, of zeros: scales of zero."""
    code_places, code_warp, scale_places, scale_warp = places
    upper, lower, scales = ring
    block = turn * NUM_IN_WARPS
    is_code = block + code_warp < num_blocks
    copy_to_shared(upper.index(stage), code_places + block * WORDS, mask=is_code, eviction_policy="evict_first")
    copy_to_shared(
        lower.index(stage), code_places + (block * WORDS + WORDS // 2), mask=is_code, eviction_policy="evict_first"
    )
    copy_to_shared(
        scales.index(stage), scale_places + block * (8 * GROUPS), mask=block + scale_warp < num_blocks,
        eviction_policy="evict_first",
    )  # fmt: skip
    commit_copies()


@gluon.jit
def load_inputs(inputs, turn, num_turns, num_in, NUM_IN_WARPS: gl.constexpr, HAS_TAIL: gl.constexpr):
    """Those of a turn, chunk by chunk; after the last turn, its own again."""
    first = gl.minimum(turn, num_turns - 1) * (NUM_IN_WARPS * BLOCK_IN)
    return (
        load_chunk(inputs, first, 0, num_in, HAS_TAIL),
        load_chunk(inputs, first, 1, num_in, HAS_TAIL),
        load_chunk(inputs, first, 2, num_in, HAS_TAIL),
        load_chunk(inputs, first, 3, num_in, HAS_TAIL),
    )


@gluon.jit
def load_chunk(inputs, first, CHUNK_NUMBER: gl.constexpr, num_in, HAS_TAIL: gl.constexpr):
    x_places, is_live, place = inputs
    if HAS_TAIL:
        is_live = is_live & (first + CHUNK_NUMBER * CHUNK + place < num_in)
    return gl.load(x_places + (first // 2 + CHUNK_NUMBER * (CHUNK // 2)), mask=is_live, other=0)


@gluon.jit
def add_turn(sums, ring, stage, chunks, SCALE_DTYPE: gl.constexpr, NUM_WARPS: gl.constexpr, TILES: gl.constexpr):
    """Sums plus the products of the blocks of a turn."""
    VECTORS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [32, 1, 1, 1], [NUM_WARPS, 1, 1, 1], [3, 2, 1, 0])
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [32, 1, 1], [NUM_WARPS, 1, 1], [2, 1, 0])
    # [warps, tiles, g, t, chunks]: thread 4 g + t has the scales of outputs g and g + 8.
    THREADS: gl.constexpr = gl.BlockedLayout(
        [1, TILES, 1, 1, 4], [1, 1, 8, 4, 1], [NUM_WARPS, 1, 1, 1, 1], [4, 3, 2, 1, 0]
    )
    upper, lower, scales = ring
    upper_words = words_of(upper.index(stage).load(VECTORS), SINGLES)
    lower_words = words_of(lower.index(stage).load(VECTORS), SINGLES)
    scale_vectors = gl.expand_dims(scales.index(stage).load(gl.SliceLayout(3, THREADS)), 3)
    scale_vectors = gl.permute(scale_vectors.broadcast_to([NUM_WARPS, TILES, 8, 4, 4]), (0, 2, 3, 1, 4))
    scale_vectors = gl.reshape(scale_vectors, [32 * NUM_WARPS, TILES, 1, 4])
    scale_words = words_of(gl.convert_layout(scale_vectors, VECTORS, assert_trivial=True), SINGLES)
    for chunk in gl.static_range(4):
        sums = add_chunk(
            sums, upper_words[chunk], lower_words[chunk], scale_words[chunk], scale_words[chunk],
            words_of(chunks[chunk], SINGLES), SCALE_DTYPE, False, SINGLES,
        )  # fmt: skip
    return sums


@gluon.jit
def make_ring(HALF: gl.constexpr, NUM_WARPS: gl.constexpr, TILES: gl.constexpr):
    """Codes of outputs g, of outputs g + 8, and scales of both, of HALF turns. Threads lie side by side."""
    CODES: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 0, 2, 1])
    SCALES: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0])
    return (
        allocate_shared_memory(gl.int32, [HALF, 32 * NUM_WARPS, TILES, 1, 4], CODES),
        allocate_shared_memory(gl.int32, [HALF, 32 * NUM_WARPS, TILES, 1, 4], CODES),
        allocate_shared_memory(gl.int32, [HALF, NUM_WARPS, TILES, 8, 4], SCALES),
    )


# One compilation serves all row counts, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["gated_stride", "num_rows", "num_tiles", "num_blocks", "num_in"])
def ring_kernel(
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
    SCALE_DTYPE: gl.constexpr,
    GROUPS: gl.constexpr,  # of a block
    TILES: gl.constexpr,
    NUM_OUT_WARPS: gl.constexpr,
    NUM_IN_WARPS: gl.constexpr,
    STAGES: gl.constexpr,  # even
    IS_AHEAD: gl.constexpr,  # inputs of a turn are loaded before the turn ahead of it is multiplied, not after
    HAS_TAIL: gl.constexpr,  # inputs do not go evenly into the blocks of a turn
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    NUM_WARPS: gl.constexpr = NUM_OUT_WARPS * NUM_IN_WARPS
    HALF: gl.constexpr = STAGES // 2
    VECTORS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [32, 1, 1, 1], [NUM_WARPS, 1, 1, 1], [3, 2, 1, 0])
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [32, 1, 1], [NUM_WARPS, 1, 1], [2, 1, 0])

    first_tile = gl.program_id(0) * (TILES * NUM_OUT_WARPS)
    num_turns = gl.cdiv(num_blocks, NUM_IN_WARPS)
    tile_places = places_of_tiles(
        codes, scales, scales, first_tile, num_tiles, num_blocks, GROUPS, TILES, NUM_OUT_WARPS, NUM_IN_WARPS
    )
    code_warp = tile_places[1]
    scale_places = places_of_scales(
        scales, first_tile, num_tiles, num_blocks, GROUPS, TILES, NUM_OUT_WARPS, NUM_IN_WARPS
    )
    places = (tile_places[0] + code_warp * WORDS, code_warp, scale_places[0], scale_places[1])
    # Turns of even and of odd numbers have rings of their own: the compiler sees that a turn reads one and copies to
    # the other, and adds no barrier to the one below.
    even, odd = make_ring(HALF, NUM_WARPS, TILES), make_ring(HALF, NUM_WARPS, TILES)
    for turn in gl.static_range(STAGES - 1):
        copy_turn(places, odd if turn % 2 else even, turn // 2, turn, num_blocks, NUM_IN_WARPS, GROUPS)
    wait_for_previous(IS_DEPENDENT)

    lane = axis(32 * NUM_WARPS, 0, VECTORS) % 32
    row = lane // 4
    place = code_warp * BLOCK_IN + lane % 4 * 8  # of the first of a thread's eight inputs
    inputs = (x + row * x_stride + place // 2 + axis(4, 3, VECTORS), row < num_rows, place)
    zeros = gl.zeros([32 * NUM_WARPS, TILES, 1], gl.float32, SINGLES)
    sums = (zeros, zeros, zeros, zeros)
    even_x = load_inputs(inputs, 0, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
    odd_x = even_x
    for turn in range(0, num_turns, 2):
        if IS_AHEAD:
            odd_x = load_inputs(inputs, turn + 1, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
        wait_for_copies(STAGES - 2)
        # Everyone's copies have come, and everyone has done with the turn before, into whose place another is copied.
        thread_barrier()
        copy_turn(places, odd, (turn // 2 + HALF - 1) % HALF, turn + (STAGES - 1), num_blocks, NUM_IN_WARPS, GROUPS)
        sums = add_turn(sums, even, turn // 2 % HALF, even_x, SCALE_DTYPE, NUM_WARPS, TILES)
        if IS_AHEAD:
            even_x = load_inputs(inputs, turn + 2, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
        else:
            odd_x = load_inputs(inputs, turn + 1, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
        if turn + 1 < num_turns:
            wait_for_copies(STAGES - 2)
            thread_barrier()
            copy_turn(places, even, turn // 2 % HALF, turn + STAGES, num_blocks, NUM_IN_WARPS, GROUPS)
            sums = add_turn(sums, odd, turn // 2 % HALF, odd_x, SCALE_DTYPE, NUM_WARPS, TILES)
        if not IS_AHEAD:
            even_x = load_inputs(inputs, turn + 2, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
    # Sums may take the place of a ring.
    wait_for_copies(0)
    thread_barrier()
    rounded = sums_of_warps(sums, NUM_OUT_WARPS, NUM_IN_WARPS, SINGLES)
    store_sums(
        rounded, first_tile, 0, gated, output, gated_stride, num_rows, num_tiles,
        IS_GATED, HAS_GATED_INPUT, TILES, 1, NUM_OUT_WARPS, NUM_IN_WARPS,
    )  # fmt: skip
