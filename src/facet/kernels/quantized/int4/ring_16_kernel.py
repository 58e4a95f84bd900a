"""Products of 9 to 16 rows with matrices of shuffled 4-bit codes that come through a ring, in Gluon.

As `ring_kernel.py`, to the bits of `few_rows_kernel.py`. Three things differ:

- Warps share a ring, and a barrier at every turn says that all of its copies have come.
- What codes become is multiplied by two tiles of 8 rows, one after the other, and a warp does so tile by tile of its
  outputs: it holds all of its sums, but codes of one tile only, and so has registers for four.
- Sixteen rows of x are as many bytes as the codes of four tiles, and every program reads them from the second-level
  cache. A warp's tiles share them: the more tiles, the better.

Blocks are counted when the kernel is compiled, so that one address serves all tiles of a warp.
"""

from facet.kernels.quantized.int4.codes import offset_of
from facet.kernels.quantized.int4.products import add_products_of_two
from facet.kernels.quantized.int4.tiles import BLOCK_IN, CHUNK, WORDS
from facet.kernels.quantized.shuffled.language import (
    allocate_shared_memory,
    commit_copies,
    copy_to_shared,
    gl,
    gluon,
    let_next_start,
    stay_in_order,
    thread_barrier,
    wait_for_copies,
    wait_for_previous,
)
from facet.kernels.quantized.shuffled.scales import unpack_scales
from facet.kernels.quantized.shuffled.tiles import axis, store_sums, sums_of_warps, words_of


@gluon.constexpr_function
def scale_copies(num_warps, tiles, groups):
    """The layout of copies of scales, [warps, tiles, g, chunks]: as many bytes at once as leave work for all threads of
    a warp."""
    if groups < 4 or tiles == 1:
        return gl.BlockedLayout([1, 1, 1, 1], [1, 1, 8, 4], [num_warps, 1, 1, 1], [3, 2, 1, 0])
    words = min(4, tiles)
    return gl.BlockedLayout([1, 1, 1, words], [1, words, 8, 4 // words], [num_warps, 1, 1, 1], [3, 2, 1, 0])


@gluon.jit
def places_of_scales(
    scales, first_tile,
    NUM_BLOCKS: gl.constexpr, GROUPS: gl.constexpr, TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr,
    NUM_IN_WARPS: gl.constexpr,
):  # fmt: skip
    """(places, warps among those that divide inputs), of the first turn. Groups may be wider than a chunk."""
    COPIES: gl.constexpr = scale_copies(NUM_OUT_WARPS * NUM_IN_WARPS, TILES, GROUPS)
    warp = axis(NUM_OUT_WARPS * NUM_IN_WARPS, 0, COPIES)
    in_warp = warp // NUM_OUT_WARPS
    chunk = axis(4, 3, COPIES)
    if GROUPS < 4:
        chunk = chunk * GROUPS // 4
    warp_tile = (first_tile + warp % NUM_OUT_WARPS * TILES).to(gl.int64)
    places = scales + (warp_tile * NUM_BLOCKS + in_warp) * (8 * GROUPS) + axis(8, 2, COPIES) * GROUPS + chunk
    return places + axis(TILES, 1, COPIES) * (NUM_BLOCKS * 8 * GROUPS), in_warp


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
def make_ring(HALF: gl.constexpr, NUM_WARPS: gl.constexpr, TILES: gl.constexpr):
    """Codes of outputs g, of outputs g + 8, and scales of both, of HALF turns. Threads lie side by side."""
    CODES: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 0, 2, 1])
    SCALES: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0])
    return (
        allocate_shared_memory(gl.int32, [HALF, 32 * NUM_WARPS, TILES, 1, 4], CODES),
        allocate_shared_memory(gl.int32, [HALF, 32 * NUM_WARPS, TILES, 1, 4], CODES),
        allocate_shared_memory(gl.int32, [HALF, NUM_WARPS, TILES, 8, 4], SCALES),
    )


@gluon.jit
def load_inputs(inputs, turn, num_turns, num_in, NUM_IN_WARPS: gl.constexpr, HAS_TAIL: gl.constexpr):
    """The inputs of a turn, chunk by chunk; after the last turn, its own again."""
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
def load_both(inputs, turn, num_turns, num_in, NUM_IN_WARPS: gl.constexpr, HAS_TAIL: gl.constexpr):
    """The inputs of a turn, chunk by chunk: of the first eight rows, then of the others."""
    return (
        load_inputs(inputs[0], turn, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL),
        load_inputs(inputs[1], turn, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL),
    )


@gluon.jit
def add_turn(sums, ring, stage, x, SCALE_DTYPE: gl.constexpr, NUM_WARPS: gl.constexpr):
    """Sums of each tile plus the products of the blocks of a turn."""
    VECTORS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [32, 1, 1, 1], [NUM_WARPS, 1, 1, 1], [3, 2, 1, 0])
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [32, 1, 1], [NUM_WARPS, 1, 1], [2, 1, 0])
    # [warps, one tile, g, t, chunks]: thread 4 g + t has the scales of outputs g and g + 8.
    THREADS: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1, 4], [1, 1, 8, 4, 1], [NUM_WARPS, 1, 1, 1, 1], [4, 3, 2, 1, 0])
    upper, lower, scales = ring
    offset = offset_of(gl.full([32 * NUM_WARPS, 1, 1], 8, gl.int32, SINGLES))
    added = ()
    for tile in gl.static_range(len(sums)):
        upper_words = words_of(upper.index(stage).slice(tile, 1, 1).load(VECTORS), SINGLES)
        lower_words = words_of(lower.index(stage).slice(tile, 1, 1).load(VECTORS), SINGLES)
        pairs = gl.expand_dims(scales.index(stage).slice(tile, 1, 1).load(gl.SliceLayout(3, THREADS)), 3)
        pairs = gl.permute(pairs.broadcast_to([NUM_WARPS, 1, 8, 4, 4]), (0, 2, 3, 1, 4))
        pairs = gl.reshape(pairs, [32 * NUM_WARPS, 1, 1, 4])
        scale_words = words_of(gl.convert_layout(pairs, VECTORS, assert_trivial=True), SINGLES)
        of_tile = sums[tile]
        for chunk in gl.static_range(4):
            upper_scale, lower_scale = unpack_scales(scale_words[chunk], SCALE_DTYPE)
            of_tile = add_products_of_two(
                of_tile, upper_words[chunk], lower_words[chunk], offset, words_of(x[0][chunk], SINGLES),
                words_of(x[1][chunk], SINGLES), upper_scale, lower_scale,
            )  # fmt: skip
        added = added + (of_tile,)  # type: ignore[assignment]  # noqa: RUF005
    return added


@gluon.jit
def joined(sums, INDEX: gl.constexpr, LAYOUT: gl.constexpr):
    """[threads, tiles, row tiles]: one of the four sums that a thread has of each."""
    if len(sums) == 1:
        both = gl.join(sums[0][INDEX], sums[0][INDEX + 4])
    elif len(sums) == 2:
        both = gl.join(gl.join(sums[0][INDEX], sums[1][INDEX]), gl.join(sums[0][INDEX + 4], sums[1][INDEX + 4]))
    else:
        even = gl.join(gl.join(sums[0][INDEX], sums[2][INDEX]), gl.join(sums[0][INDEX + 4], sums[2][INDEX + 4]))
        odd = gl.join(gl.join(sums[1][INDEX], sums[3][INDEX]), gl.join(sums[1][INDEX + 4], sums[3][INDEX + 4]))
        both = gl.permute(gl.join(even, odd), (0, 1, 2, 3, 5, 4))
    return gl.convert_layout(gl.reshape(both, [both.shape[0], len(sums), 2]), LAYOUT, assert_trivial=True)


# One compilation serves all row counts, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["gated_stride", "num_rows", "num_tiles", "num_in"])
def ring_16_kernel(
    x,  # int32: two bfloat16 numbers each
    codes,
    scales,
    gated,
    output,
    x_stride,
    gated_stride,
    num_rows,
    num_tiles,
    num_in,
    NUM_BLOCKS: gl.constexpr,
    IS_GATED: gl.constexpr,  # GeGLU
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    SCALE_DTYPE: gl.constexpr,
    GROUPS: gl.constexpr,  # of a block
    TILES: gl.constexpr,  # 1, 2 or 4
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

    # The last program goes back to where it has as many tiles as the others: some are multiplied twice, to one result.
    first_tile = gl.minimum(gl.program_id(0) * (TILES * NUM_OUT_WARPS), num_tiles - TILES * NUM_OUT_WARPS)
    # Not of NUM_BLOCKS: Triton 3.6 fails on a loop of one turn that it knows to be one.
    num_turns = gl.cdiv(num_in, BLOCK_IN * NUM_IN_WARPS)
    thread = axis(32 * NUM_WARPS, 0, VECTORS)
    code_warp = thread // (32 * NUM_OUT_WARPS)
    warp_tile = (first_tile + thread // 32 % NUM_OUT_WARPS * TILES).to(gl.int64)
    code_places = codes + (warp_tile * NUM_BLOCKS + code_warp) * WORDS + thread % 32 * 4
    code_places += axis(TILES, 1, VECTORS) * (NUM_BLOCKS * WORDS) + axis(4, 3, VECTORS)
    scale_places, scale_warp = places_of_scales(
        scales, first_tile, NUM_BLOCKS, GROUPS, TILES, NUM_OUT_WARPS, NUM_IN_WARPS
    )
    places = (code_places, code_warp, scale_places, scale_warp)
    # Turns of even and of odd numbers have rings of their own: the compiler sees that a turn reads one and copies to
    # the other, and adds no barrier to the one below.
    even, odd = make_ring(HALF, NUM_WARPS, TILES), make_ring(HALF, NUM_WARPS, TILES)
    for turn in gl.static_range(STAGES - 1):
        copy_turn(places, odd if turn % 2 else even, turn // 2, turn, NUM_BLOCKS, NUM_IN_WARPS, GROUPS)
    wait_for_previous(IS_DEPENDENT)

    lane = thread % 32
    row = lane // 4
    place = code_warp * BLOCK_IN + lane % 4 * 8  # of the first of a thread's eight inputs
    x_places = x + row * x_stride + place // 2 + axis(4, 3, VECTORS)
    inputs = ((x_places, row < num_rows, place), (x_places + 8 * x_stride, row + 8 < num_rows, place))
    zeros = gl.zeros([32 * NUM_WARPS, 1, 1], gl.float32, SINGLES)
    sums = ((zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros),) * TILES
    even_x = load_both(inputs, 0, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
    odd_x = even_x
    for turn in range(0, num_turns, 2):
        wait_for_copies(STAGES - 2)
        # Everyone's copies have come, and everyone has done with the turn before, into whose place another is copied.
        thread_barrier()
        copy_turn(places, odd, (turn // 2 + HALF - 1) % HALF, turn + (STAGES - 1), NUM_BLOCKS, NUM_IN_WARPS, GROUPS)
        if IS_AHEAD:
            odd_x = load_both(inputs, turn + 1, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
            stay_in_order()
        sums = add_turn(sums, even, turn // 2 % HALF, even_x, SCALE_DTYPE, NUM_WARPS)
        if not IS_AHEAD:
            odd_x = load_both(inputs, turn + 1, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
        if turn + 1 < num_turns:
            wait_for_copies(STAGES - 2)
            thread_barrier()
            copy_turn(places, even, turn // 2 % HALF, turn + STAGES, NUM_BLOCKS, NUM_IN_WARPS, GROUPS)
            if IS_AHEAD:
                even_x = load_both(inputs, turn + 2, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
                stay_in_order()
            sums = add_turn(sums, odd, turn // 2 % HALF, odd_x, SCALE_DTYPE, NUM_WARPS)
            if not IS_AHEAD:
                even_x = load_both(inputs, turn + 2, num_turns, num_in, NUM_IN_WARPS, HAS_TAIL)
    # Sums may take the place of a ring.
    wait_for_copies(0)
    thread_barrier()
    together = (joined(sums, 0, SINGLES), joined(sums, 1, SINGLES), joined(sums, 2, SINGLES), joined(sums, 3, SINGLES))
    added = sums_of_warps(together, NUM_OUT_WARPS, NUM_IN_WARPS, SINGLES)
    store_sums(
        added, None, first_tile, 0, gated, output, gated_stride, num_rows, num_tiles,
        IS_GATED, HAS_GATED_INPUT, TILES, 2, NUM_OUT_WARPS, NUM_IN_WARPS,
    )  # fmt: skip
