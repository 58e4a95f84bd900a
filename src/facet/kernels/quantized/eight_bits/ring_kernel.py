"""Products of few rows of codes with matrices of eight bits, in Gluon: bound by reading the matrix once.

Tensor cores of Hopper multiply 64 outputs by 8 rows, 32 inputs after 32 (`wgmma`), and take both from shared memory.
What they need comes through a ring of tiles there:

    memory ──► ring of STAGES tiles ──► sums of a tile ──► sums

The matrix's first tiles, as many as the ring holds, are on their way before the kernel waits for the one before it.
While others norm and attend, the multiprocessors already read what comes next.

A single row may come as it is, with numbers of which the greatest is its largest magnitude: every program then rounds
what it needs of it. A kernel that did so before would be another one to wait for.

Where outputs are too few to occupy all multiprocessors, a row of the matrix is cut into shares, whose sums the last
program adds in their order.
"""

from facet.kernels.quantized.eight_bits.language import (
    allocate_shared_memory,
    arrives_last,
    codes_of,
    commit_copies,
    copy_to_shared,
    fence_async_shared,
    gl,
    gluon,
    greater_magnitudes,
    largest_magnitude,
    let_next_start,
    let_through,
    scale_of,
    thread_barrier,
    wait_for_copies,
    wait_for_previous,
    warpgroup_mma,
    warpgroup_mma_wait,
)

BLOCK_OUT = gl.constexpr(64)  # outputs of a program: those of a product of four warps
ROWS = gl.constexpr(8)


@gluon.jit
def copy_tile_of(places, is_there, tiles, turn, num_live, POLICY: gl.constexpr):
    """Start to copy a tile to its place in the ring; of inputs of another share, and of none, zeros."""
    STAGES: gl.constexpr = tiles.shape[0]
    BLOCK_IN: gl.constexpr = tiles.shape[2]
    COPIES: gl.constexpr = copies_of(BLOCK_IN)
    # In steps of 16, so that the compiler knows that 16 are there, or none.
    step = gl.arange(0, BLOCK_IN, gl.SliceLayout(0, COPIES)) // 16
    copy_to_shared(
        tiles.index(turn % STAGES),
        places + turn * BLOCK_IN,
        mask=is_there & gl.expand_dims(step < num_live // 16 - turn * (BLOCK_IN // 16), 0),
        eviction_policy=POLICY,
    )


@gluon.constexpr_function
def copies_of(block_in):
    """16 bytes a thread, threads of a row side by side."""
    return gl.BlockedLayout([1, 16], [512 // block_in, block_in // 16], [4, 1], [1, 0])


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["num_rows"])
def ring_kernel(
    x,
    row_scales,  # or magnitudes, of a row that is to be rounded
    codes,
    scales,
    gated,
    output,
    magnitudes,  # of each program's results; None: nobody asks
    x_stride,
    code_stride,
    scale_stride,
    gated_stride,
    num_rows,
    num_out,
    partial_sums,
    arrivals,
    NUM_IN: gl.constexpr,
    NUM_MAGNITUDES: gl.constexpr,  # 0: x are codes
    DIVISOR: gl.constexpr,
    LEAST: gl.constexpr,
    GREATEST: gl.constexpr,
    IS_INTEGER: gl.constexpr,  # int8, else fp8
    IS_GATED: gl.constexpr,  # GeGLU
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    SHARES: gl.constexpr,
    BLOCK_IN: gl.constexpr,
    STAGES: gl.constexpr,
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    CODES: gl.constexpr = codes.dtype.element_ty
    SUM: gl.constexpr = gl.int32 if IS_INTEGER else gl.float32
    COPIES: gl.constexpr = copies_of(BLOCK_IN)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 32])
    MATRIX_TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_OUT, BLOCK_IN], CODES)
    X_TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK_IN], CODES)
    # Shares of whole tiles: those of the matrix, whatever the number of rows.
    NUM_TILES: gl.constexpr = (NUM_IN + BLOCK_IN - 1) // BLOCK_IN
    PER_SHARE: gl.constexpr = (NUM_TILES + SHARES - 1) // SHARES

    # Programs that share a tile of the matrix run side by side: one reads it from memory, the others from the cache.
    num_row_groups = gl.cdiv(num_rows, ROWS)
    share = gl.program_id(0) % SHARES
    place = gl.program_id(0) // SHARES
    first_row = place % num_row_groups * ROWS
    tile_number = place // num_row_groups
    first = share * PER_SHARE
    num_turns = gl.minimum(PER_SHARE, NUM_TILES - first)
    num_live = gl.minimum(PER_SHARE * BLOCK_IN, NUM_IN - first * BLOCK_IN)

    local = gl.arange(0, BLOCK_OUT, gl.SliceLayout(1, COPIES))
    column = first * BLOCK_IN + gl.arange(0, BLOCK_IN, gl.SliceLayout(0, COPIES))
    matrix_row = row_of(local, tile_number, num_out, IS_GATED).to(gl.int64)
    code_places = codes + gl.expand_dims(matrix_row * code_stride, 1) + gl.expand_dims(column, 0)
    is_output = gl.expand_dims(local >= 0, 1)
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, COPIES))
    x_places = x + gl.expand_dims(row.to(gl.int64) * x_stride, 1) + gl.expand_dims(column, 0)
    is_row = gl.expand_dims(row < num_rows, 1)

    matrix_tiles = allocate_shared_memory(CODES, [STAGES, BLOCK_OUT, BLOCK_IN], MATRIX_TILE)
    x_tiles = allocate_shared_memory(CODES, [STAGES, ROWS, BLOCK_IN], X_TILE)
    for turn in gl.static_range(STAGES):
        copy_tile_of(code_places, is_output, matrix_tiles, turn, num_live, "evict_first")
        commit_copies()
    matrix_row = row_of(gl.arange(0, BLOCK_OUT, gl.SliceLayout(1, SUMS)), tile_number, num_out, IS_GATED)
    factors = gl.load(scales + matrix_row.to(gl.int64) * scale_stride).to(gl.float32)
    wait_for_previous(IS_DEPENDENT)
    if NUM_MAGNITUDES > 0:
        ROW: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        row_codes = allocate_shared_memory(CODES, [next_power_of_2(PER_SHARE), BLOCK_IN], ROW)
        row_scale = scale_of(largest_of(row_scales, NUM_MAGNITUDES), DIVISOR)
        round_row(x + first * BLOCK_IN, row_codes, row_scale, num_live, LEAST, GREATEST)
        put_row(row_codes, x_tiles, 0)
    else:
        row_codes = x_tiles
        row_scale = 1.0
        for turn in gl.static_range(STAGES):
            copy_tile_of(x_places, is_row, x_tiles, turn, num_live, "")
            commit_copies()

    zeros = gl.zeros([BLOCK_OUT, ROWS], SUM, SUMS)
    wait_for_copies(STAGES - 1)
    fence_async_shared()
    thread_barrier()
    product = warpgroup_mma(
        matrix_tiles.index(0), x_tiles.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True
    )
    totals = warpgroup_mma_wait(0, deps=(product,))
    for turn in range(1, num_turns):
        if NUM_MAGNITUDES > 0:
            put_row(row_codes, x_tiles, turn)
        wait_for_copies(STAGES - 2)
        fence_async_shared()
        thread_barrier()
        stage = turn % STAGES
        # Tensor cores add products of fp8 with few bits: a tile's sum is added to the others in float32.
        product = warpgroup_mma(
            matrix_tiles.index(stage), x_tiles.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        # Everyone has done with the tile before, so that another may take its place: after the last, zeros.
        copy_tile_of(code_places, is_output, matrix_tiles, turn + (STAGES - 1), num_live, "evict_first")
        if NUM_MAGNITUDES == 0:
            copy_tile_of(x_places, is_row, x_tiles, turn + (STAGES - 1), num_live, "")
        commit_copies()
        totals += warpgroup_mma_wait(0, deps=(product,))
    wait_for_copies(0)

    is_last = True
    if SHARES > 1:
        output_in_tile = gl.arange(0, BLOCK_OUT, gl.SliceLayout(1, SUMS))
        row_in_tile = gl.arange(0, ROWS, gl.SliceLayout(0, SUMS))
        within = gl.expand_dims(output_in_tile * ROWS, 1) + gl.expand_dims(row_in_tile, 0)
        sums_of_tile = partial_sums + place.to(gl.int64) * (SHARES * BLOCK_OUT * ROWS) + within
        gl.store(sums_of_tile + share * (BLOCK_OUT * ROWS), totals)
        is_last = arrives_last(arrivals, place, SHARES)
        if is_last:
            # In their order, whoever is last. Past the first-level cache, which is not told of others' stores.
            totals = gl.zeros([BLOCK_OUT, ROWS], SUM, SUMS)
            for each in gl.static_range(SHARES):
                totals += gl.load(sums_of_tile + each * (BLOCK_OUT * ROWS), cache_modifier=".cg")
    if is_last:
        rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(0, SUMS))
        sums = totals.to(gl.float32)
        if NUM_MAGNITUDES > 0:
            sums *= row_scale
        else:
            sums *= gl.expand_dims(gl.load(row_scales + rows, mask=rows < num_rows, other=0.0), 0)
        finish(
            sums * gl.expand_dims(factors, 1), rows, gated, output, magnitudes, tile_number,
            gated_stride, num_rows, num_out, IS_GATED, HAS_GATED_INPUT, SUMS,
        )  # fmt: skip


@gluon.constexpr_function
def next_power_of_2(number):
    return 1 << (number - 1).bit_length()


@gluon.constexpr_function
def along(block):
    """Numbers one behind the other, eight of each thread."""
    return gl.BlockedLayout([min(8, max(1, block // 128))], [32], [4], [0])


@gluon.jit
def largest_of(numbers, NUM: gl.constexpr):
    """The largest magnitude of so many. All are on their way at once, where registers hold them."""
    BLOCK: gl.constexpr = min(8192, next_power_of_2(NUM))
    place = gl.arange(0, BLOCK, along(BLOCK))
    greatest = gl.zeros([BLOCK], gl.float32, along(BLOCK))
    for start in gl.static_range(0, NUM, BLOCK):
        greatest = greater_magnitudes(greatest, gl.load(numbers + start + place, mask=start + place < NUM, other=0.0))
    return largest_magnitude(greatest, 0)


@gluon.jit
def round_row(x, row_codes, scale, num_live, LEAST: gl.constexpr, GREATEST: gl.constexpr):
    """This share's part of the row, as codes: [tiles, BLOCK_IN]."""
    TILES: gl.constexpr = row_codes.shape[0]
    BLOCK_IN: gl.constexpr = row_codes.shape[1]
    LOADS: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_IN, BLOCK_IN // 8], [4, 1], [1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    tile = gl.expand_dims(gl.arange(0, TILES, gl.SliceLayout(1, LOADS)), 1)
    place = tile * BLOCK_IN + gl.expand_dims(gl.arange(0, BLOCK_IN, gl.SliceLayout(0, LOADS)), 0)
    values = gl.load(x + place, mask=place < num_live, other=0.0).to(gl.float32)
    codes = codes_of(values, scale, row_codes.dtype, LEAST, GREATEST)
    row_codes._reinterpret(row_codes.dtype, [TILES, BLOCK_IN], PLAIN).store(codes)
    thread_barrier()


@gluon.jit
def put_row(row_codes, x_tiles, turn):
    """The row's codes of a tile to their place in the ring, eight times: products take no fewer."""
    STAGES: gl.constexpr = x_tiles.shape[0]
    BLOCK_IN: gl.constexpr = x_tiles.shape[2]
    COPIES: gl.constexpr = copies_of(BLOCK_IN)
    codes = gl.expand_dims(row_codes.index(turn).load(gl.SliceLayout(0, COPIES)), 0)
    x_tiles.index(turn % STAGES).store(codes.broadcast_to([ROWS, BLOCK_IN]))


@gluon.jit
def row_of(local, tile_number, num_out, IS_GATED: gl.constexpr):
    """The row of the matrix that is the `local`-th of a program. Beyond the last output that one is read again, which
    needs no mask; the store drops the result."""
    if IS_GATED:
        # A warp has eight gates, then their ups: a thread has both.
        column = tile_number * (BLOCK_OUT // 2) + local // 16 * 8 + local % 8
        return gl.minimum(column, num_out - 1) + local % 16 // 8 * num_out
    else:
        return gl.minimum(tile_number * BLOCK_OUT + local, num_out - 1)


@gluon.jit
def finish(
    sums, rows, gated, output, magnitudes, tile_number,
    gated_stride, num_rows, num_out, IS_GATED: gl.constexpr, HAS_GATED_INPUT: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Rounds, applies the activation, stores."""
    OUT_PER_PROGRAM: gl.constexpr = BLOCK_OUT // 2 if IS_GATED else BLOCK_OUT
    result = sums.to(output.dtype.element_ty)
    local = gl.arange(0, BLOCK_OUT, gl.SliceLayout(1, SUMS))
    if IS_GATED:
        local = local // 16 * 8 + local % 8
    column = gl.expand_dims(tile_number * OUT_PER_PROGRAM + local, 1)
    row = gl.expand_dims(rows, 0)
    is_there = (row < num_rows) & (column < num_out)
    places = row.to(gl.int64) * num_out + column
    if IS_GATED:
        gate, up = gates_and_ups(result)
        result = let_through(gate, up)
        is_there, _ = gates_and_ups(is_there)
        places, _ = gates_and_ups(places)
    elif HAS_GATED_INPUT:
        given = gl.load(gated + row.to(gl.int64) * gated_stride + column, mask=is_there, other=0.0)
        result = let_through(result, given)
    gl.store(output + places, result, mask=is_there)
    if magnitudes is not None:
        # Columns past the last repeat it.
        greatest = largest_magnitude(gl.reshape(result, [OUT_PER_PROGRAM, ROWS]).to(gl.float32), 0)
        greatest = gl.convert_layout(greatest, gl.SliceLayout(0, SUMS))
        num_parts = gl.cdiv(num_out, OUT_PER_PROGRAM)
        gl.store(magnitudes + rows.to(gl.int64) * num_parts + tile_number, greatest, mask=rows < num_rows)


@gluon.jit
def gates_and_ups(values):
    """[outputs, rows] -> two of [warps, 8, rows]."""
    return gl.split(gl.permute(gl.reshape(values, [values.shape[0] // 16, 2, 8, values.shape[1]]), (0, 2, 3, 1)))
