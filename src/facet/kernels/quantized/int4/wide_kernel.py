"""Products of tens of rows with matrices of shuffled 4-bit codes, in Gluon, by the large products of Hopper.

A warp takes a tile of 16 outputs and brings a block of its codes to bfloat16 values, scales included, in the registers
from which `wgmma` takes its left operand: for a warp these are the registers of `mma.sync`, for which codes were
shuffled. The right operand is rows of x in shared memory, the same for all warps. Codes, scales and x come to shared
memory by copies that run a few blocks ahead.

A thread's eight inputs are neighbours in the matrix, but not in what tensor cores take its registers for: of every 32
inputs of a row of x, pair 4 t + i has to lie at pair 4 i + t.

Where tiles are too few to occupy all multiprocessors, the blocks of a tile are cut into shares, whose sums the last
program adds in their order.
"""

from facet.kernels.quantized.int4.language import (
    allocate_shared_memory,
    commit_copies,
    copy_to_shared,
    dequantize_codes,
    dequantize_fp4,
    dequantize_less_minimums,
    fence_async_shared,
    gl,
    gluon,
    let_next_start,
    offset_of,
    thread_barrier,
    wait_for_copies,
    wait_for_previous,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from facet.kernels.quantized.int4.tiles import opened

BLOCK_IN = gl.constexpr(128)  # inputs of a block of codes
WORDS = gl.constexpr(256)  # of four bytes, in a block


@gluon.jit
def copy_block(sources, targets, stage, block, num_blocks):
    """Starts the copies of a block of every tile, its scales and its inputs; after the last, of the last again."""
    code_places, scale_places, x_places, SCALE_WORDS = sources
    codes, scales, x = targets
    block = gl.minimum(block, num_blocks - 1)
    copy_to_shared(codes.index(stage), code_places + block * WORDS)
    copy_to_shared(scales.index(stage), scale_places + block * SCALE_WORDS)
    copy_to_shared(x.index(stage), x_places + block * BLOCK_IN)
    commit_copies()


@gluon.jit
def values_of(
    codes, scales, zeros, stage,
    SCALE_DTYPE: gl.constexpr, HAS_ZEROS: gl.constexpr, TILES: gl.constexpr, LEFT: gl.constexpr, THREADS: gl.constexpr,
):  # fmt: skip
    """[16 outputs of each tile, inputs] of a block, as the left operand of a product. `zeros`: of `load_zeros`."""
    FLAT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [TILES, 1], [1, 0])
    half = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, gl.SliceLayout(4, THREADS)))))
    half = gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.expand_dims(half, 0), 2), 3), 4)
    words = gl.reshape(codes.index(stage).load(FLAT), [TILES, 2, 8, 4, 4])
    words = gl.convert_layout(words, THREADS, assert_trivial=True)
    pairs = scales.index(stage).load(gl.SliceLayout(1, gl.SliceLayout(3, THREADS)))
    # Four of [tiles, halves, g, t, chunks, sides].
    if gl.float8e4nv == SCALE_DTYPE:
        values = dequantize_fp4(words, small_scales(pairs, half, TILES, THREADS))
    elif gl.uint8 == SCALE_DTYPE:
        pairs = gl.expand_dims(gl.expand_dims(pairs, 1), 3)
        coarse = zeros + 0 * words  # for every chunk
        values = dequantize_less_minimums(words, gl.where(half == 0, pairs, pairs >> 16), coarse)
    else:
        zero = half * 0 + 8
        if HAS_ZEROS:
            zeros = gl.expand_dims(gl.expand_dims(zeros, 1), 3)
            zero = gl.where(half == 0, zeros & 255, (zeros >> 8) & 255)
        pairs = gl.expand_dims(gl.expand_dims(pairs, 1), 3)
        values = dequantize_codes(words, pairs, offset_of(zero), half, SCALE_DTYPE)
    quarters = gl.join(gl.join(values[0], values[1]), gl.join(values[2], values[3]))
    # [tiles, halves, g, chunks, products of a chunk, halves of its inputs, t, sides]
    quarters = gl.permute(quarters, (0, 1, 2, 4, 7, 6, 3, 5))
    return gl.convert_layout(gl.reshape(quarters, [16 * TILES, BLOCK_IN]), LEFT, assert_trivial=True)


@gluon.jit
def small_scales(words, half, TILES: gl.constexpr, THREADS: gl.constexpr):
    """Bits of those e4m3, [tiles, halves, g, t, chunks], of the words of a block (`shuffled.py`)."""
    upper, lower = gl.split(gl.reshape(words, [TILES, 8, 2, 2]))
    first = gl.where(half == 0, of_outputs(upper, 0, THREADS), of_outputs(lower, 0, THREADS))
    second = gl.where(half == 0, of_outputs(upper, 1, THREADS), of_outputs(lower, 1, THREADS))
    thread = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(4, THREADS)))))
    thread = gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.expand_dims(thread, 0), 1), 2), 4)
    chunk = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, THREADS)))))
    chunk = gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.expand_dims(chunk, 0), 1), 2), 3)
    return gl.where(thread < 2, first, second) >> 8 * chunk & 127


@gluon.jit
def of_outputs(words, SIDE: gl.constexpr, THREADS: gl.constexpr):
    """[tiles, 1, g, 1, 1] of [tiles, g, sides]: those of threads 0 and 1, or of the others."""
    of_first, of_second = gl.split(words)
    chosen = of_first if SIDE == 0 else of_second
    chosen = gl.convert_layout(chosen, gl.SliceLayout(1, gl.SliceLayout(3, gl.SliceLayout(4, THREADS))), True)
    return gl.expand_dims(gl.expand_dims(gl.expand_dims(chosen, 1), 3), 4)


@gluon.jit
def first_scales(first_tile, num_tiles, num_blocks, GROUPS: gl.constexpr, TILES: gl.constexpr, LAYOUT: gl.constexpr):
    """[tiles, g, chunks]: where the scales of each lie, in the first block. Groups may be wider than a chunk."""
    tile = gl.arange(0, TILES, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    tile = gl.minimum(first_tile + tile, num_tiles - 1).to(gl.int64) * num_blocks * (8 * GROUPS)
    member = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT))) * GROUPS
    chunk = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT))) * GROUPS // 4
    return (
        gl.expand_dims(gl.expand_dims(tile, 1), 2)
        + gl.expand_dims(gl.expand_dims(member, 0), 2)
        + gl.expand_dims(gl.expand_dims(chunk, 0), 1)
    )


@gluon.jit
def first_coarse(first_tile, num_tiles, num_blocks, TILES: gl.constexpr, THREADS: gl.constexpr):
    """[tiles, halves, g, 1, 1]: where the coarse scale and minimum of each output lie, of the first two blocks."""
    tile = gl.arange(0, TILES, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, gl.SliceLayout(4, THREADS)))))
    half = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, gl.SliceLayout(4, THREADS)))))
    member = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, gl.SliceLayout(4, THREADS)))))
    tile = gl.minimum(first_tile + tile, num_tiles - 1).to(gl.int64) * gl.cdiv(num_blocks, 2) * 16
    return (
        gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.expand_dims(tile, 1), 2), 3), 4)
        + gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.expand_dims(half, 0), 2), 3), 4)
        + gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.expand_dims(member * 2, 0), 1), 3), 4)
    )


@gluon.jit
def load_zeros(
    places, block, num_blocks, SCALE_DTYPE: gl.constexpr, HAS_ZEROS: gl.constexpr, GROUPS: gl.constexpr
):  # fmt: skip
    """Zeros of a block, or what is coarse: these come past shared memory. After the last, of the last again."""
    block = gl.minimum(block, num_blocks - 1)
    zeros = block
    if HAS_ZEROS:
        zeros = gl.load(places + block * (8 * GROUPS)).to(gl.int32)
    elif gl.uint8 == SCALE_DTYPE:
        zeros = gl.load(places + block // 2 * 16)
    return zeros


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["gated_stride", "num_rows", "num_tiles", "num_blocks"])
def wide_kernel(
    x,  # [whole groups of rows, whole blocks], in the order of codes
    codes,
    scales,
    zeros,  # int16: two of them each; beside scales of uint8, words of coarse scales and minimums
    factors,  # of whole rows; None: there are none
    gated,
    output,
    partial_sums,
    arrivals,
    x_stride,
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
    SHARES: gl.constexpr,
    STAGES: gl.constexpr,
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [TILES, 1], [16, ROWS, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    FLAT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [TILES, 1], [1, 0])
    PAIRS: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 8, 4], [TILES, 1, 1], [2, 1, 0])
    # [tiles, halves of a tile, g, t, chunks]: thread 4 g + t has outputs g and g + 8 and eight inputs of each chunk.
    THREADS: gl.constexpr = gl.BlockedLayout([1, 2, 1, 1, 4], [1, 1, 8, 4, 1], [TILES, 1, 1, 1, 1], [4, 3, 2, 1, 0])
    ZEROS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, THREADS))
    INPUTS: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [TILES, 1], [1, 0])
    PLAIN_2: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    PLAIN_3: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    TILE_OF_X: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK_IN], gl.bfloat16)

    # Programs that share tiles run side by side: one reads them from memory, the others from the cache.
    share = gl.program_id(0) % SHARES
    place = gl.program_id(0) // SHARES
    num_row_groups = gl.cdiv(num_rows, ROWS)
    first_row = place % num_row_groups * ROWS
    first_tile = place // num_row_groups * TILES
    per_share = gl.cdiv(num_blocks, SHARES)
    first = share * per_share
    num_turns = gl.minimum(per_share, num_blocks - first)

    # Beyond the last tile that one is read again, which needs no mask; the store drops the result.
    tile = gl.minimum(first_tile + gl.arange(0, TILES, gl.SliceLayout(1, FLAT)), num_tiles - 1)
    word = gl.arange(0, WORDS, gl.SliceLayout(0, FLAT))
    code_places = codes + gl.expand_dims(tile.to(gl.int64) * num_blocks * WORDS, 1) + gl.expand_dims(word, 0)

    scale_places = scales + first_scales(first_tile, num_tiles, num_blocks, GROUPS, TILES, PAIRS)
    if gl.uint8 == SCALE_DTYPE:
        zero_places = zeros + first_coarse(first_tile, num_tiles, num_blocks, TILES, THREADS)
    else:
        zero_places = zeros + first_scales(first_tile, num_tiles, num_blocks, GROUPS, TILES, ZEROS)

    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, INPUTS))
    column = gl.arange(0, BLOCK_IN, gl.SliceLayout(0, INPUTS))
    x_places = x + gl.expand_dims(row.to(gl.int64) * x_stride, 1) + gl.expand_dims(column, 0)

    code_tiles = allocate_shared_memory(gl.int32, [STAGES, TILES, WORDS], PLAIN_2)
    scale_tiles = allocate_shared_memory(gl.int32, [STAGES, TILES, 8, 4], PLAIN_3)
    x_tiles = allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, BLOCK_IN], TILE_OF_X)
    sources = (code_places, scale_places, x_places, 8 * GROUPS)
    targets = (code_tiles, scale_tiles, x_tiles)

    wait_for_previous(IS_DEPENDENT)
    for ahead in gl.static_range(STAGES - 1):
        copy_block(sources, targets, ahead, first + ahead, num_blocks)
    wait_for_copies(STAGES - 2)
    thread_barrier()
    zeros = load_zeros(zero_places, first, num_blocks, SCALE_DTYPE, HAS_ZEROS, GROUPS)
    values = values_of(code_tiles, scale_tiles, zeros, 0, SCALE_DTYPE, HAS_ZEROS, TILES, LEFT, THREADS)
    zeros = load_zeros(zero_places, first + 1, num_blocks, SCALE_DTYPE, HAS_ZEROS, GROUPS)
    sums = gl.zeros([16 * TILES, ROWS], gl.float32, SUMS)
    for turn in range(0, num_turns):
        fence_async_shared()
        product = warpgroup_mma(values, x_tiles.index(turn % STAGES).permute((1, 0)), sums, is_async=True)
        # Meanwhile the next block comes to registers. The barrier also says that everyone has done with the block
        # before, into whose place another is copied.
        wait_for_copies(STAGES - 3)
        thread_barrier()
        copy_block(sources, targets, (turn + (STAGES - 1)) % STAGES, first + turn + (STAGES - 1), num_blocks)
        next_values = values_of(
            code_tiles, scale_tiles, zeros, (turn + 1) % STAGES, SCALE_DTYPE, HAS_ZEROS, TILES, LEFT, THREADS
        )
        zeros = load_zeros(zero_places, first + turn + 2, num_blocks, SCALE_DTYPE, HAS_ZEROS, GROUPS)
        sums, _ = warpgroup_mma_wait(0, deps=(product, values))
        values = next_values
    wait_for_copies(0)

    is_last = True
    if SHARES > 1:
        output_in_tile = gl.arange(0, 16 * TILES, gl.SliceLayout(1, SUMS))
        row_in_tile = gl.arange(0, ROWS, gl.SliceLayout(0, SUMS))
        within = gl.expand_dims(output_in_tile * ROWS, 1) + gl.expand_dims(row_in_tile, 0)
        places = partial_sums + place.to(gl.int64) * (SHARES * 16 * TILES * ROWS) + within
        gl.store(places + share * (16 * TILES * ROWS), sums)
        # As in arrivals.py.
        thread_barrier()
        is_last = gl.atomic_add(arrivals + place, 1, sem="acq_rel", scope="gpu") == SHARES - 1
        if is_last:
            gl.store(arrivals + place, 0)
            sums = gl.zeros([16 * TILES, ROWS], gl.float32, SUMS)
            for each in gl.static_range(SHARES):
                sums += gl.load(places + each * (16 * TILES * ROWS), cache_modifier=".cg")
    if is_last:
        if factors is not None:
            factor = gl.arange(0, 16 * TILES, gl.SliceLayout(1, SUMS))
            factor = gl.load(factors + gl.minimum(first_tile * 16 + factor, num_tiles * 16 - 1))
            sums *= gl.expand_dims(factor, 1)
        finish(
            sums, first_row, first_tile, gated, output, gated_stride, num_rows, num_tiles,
            IS_GATED, HAS_GATED_INPUT, ROWS, TILES,
        )  # fmt: skip


@gluon.jit
def finish(
    sums, first_row, first_tile, gated, output, gated_stride, num_rows, num_tiles,
    IS_GATED: gl.constexpr, HAS_GATED_INPUT: gl.constexpr, ROWS: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """Rounds, applies the activation, stores: rows of neighbouring outputs."""
    WIDTH: gl.constexpr = 8 if IS_GATED else 16
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // (WIDTH * TILES), WIDTH * TILES // 8], [TILES, 1], [1, 0])
    rounded = sums.to(gl.bfloat16)
    if IS_GATED:
        halves = gl.permute(gl.reshape(rounded, [TILES, 2, 8, ROWS]), (0, 2, 3, 1))
        gate, up = gl.split(halves)
        rounded = gl.reshape(opened(gate, up), [8 * TILES, ROWS])
    result = gl.convert_layout(gl.permute(rounded, (1, 0)), OUT)
    num_out = num_tiles * WIDTH
    row = gl.expand_dims(first_row + gl.arange(0, ROWS, gl.SliceLayout(1, OUT)), 1)
    column = gl.expand_dims(first_tile * WIDTH + gl.arange(0, WIDTH * TILES, gl.SliceLayout(0, OUT)), 0)
    is_there = (row < num_rows) & (column < num_out)
    if HAS_GATED_INPUT:
        result = opened(result, gl.load(gated + row * gated_stride + column, mask=is_there, other=0.0))
    gl.store(output + row * num_out + column, result, mask=is_there)
