"""What a layer computes after attention for a single row, in one launch, in Gluon.

    attended ─► output ─┬─► add, norm ─► gate, up ─┬─► down ─┬─► add ─► per-layer gate ─┬─► projection ─┬─► add, norm
                        │                          │         │                          │               │
                     programs meet              they meet    ...                                        the last one

One row reads every weight once and does little else. Kernel after kernel, memory would stand still at each end and each
beginning. Here each multiprocessor has one program, which owns some outputs of every product, and all it will ever
multiply comes through one ring of tiles in shared memory, product after product: while programs meet, and while each
computes the same norm for itself, the tiles of the next product are already on their way.

Sums are chains (`linear/chain.py`), and norms add in the order of `add_norm/triton.py`, so that the bits are those of
the kernels that take several rows.
"""

from facet.kernels.after_attention import plan
from facet.kernels.after_attention.language import (
    allocate_shared_memory,
    arrive,
    commit_copies,
    copy_to_shared,
    fence_async_shared,
    gl,
    gluon,
    let_next_start,
    let_through,
    meet,
    thread_barrier,
    wait_for_copies,
    wait_for_previous,
    warpgroup_mma,
    warpgroup_mma_wait,
)

TILE_OUT, TILE_IN = gl.constexpr(plan.TILE_OUT), gl.constexpr(plan.TILE_IN)
HALF = gl.constexpr(plan.TILE_IN // 2)
INPUTS = gl.constexpr(plan.INPUTS)
NUM_WARPS, NORM_WARPS = gl.constexpr(plan.NUM_WARPS), gl.constexpr(plan.NORM_WARPS)
# Rows of a product, all the same: the least that a warp group multiplies.
ROWS = gl.constexpr(64)


@gluon.constexpr_function
def num_groups(num_out, is_gated):
    """Tiles that a program's outputs of one product, or its pairs of gate and up, are divided among."""
    most = TILE_OUT // 2 if is_gated else TILE_OUT
    return (num_out + most - 1) // most


@gluon.constexpr_function
def per_group(num_out, is_gated):
    groups = num_groups(num_out, is_gated)
    return (num_out + groups - 1) // groups


@gluon.constexpr_function
def num_tiles(num_out, num_in, is_gated):
    return num_groups(num_out, is_gated) * (num_in // TILE_IN) if num_out > 0 else 0


@gluon.jit
def copy_tile_of(weight, tiles, slot, tile, OUT: gl.constexpr, NUM_IN: gl.constexpr, IS_GATED: gl.constexpr):
    """Start to copy a tile of the OUT outputs that this program owns. Rows that are not there are zeros."""
    COPIES: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [NUM_WARPS, 1], [1, 0])
    GROUP: gl.constexpr = per_group(OUT, IS_GATED)
    local = gl.arange(0, TILE_OUT, gl.SliceLayout(1, COPIES))
    # A gate and what it opens are neighbours.
    own = local // 2 if IS_GATED else local
    number = tile // (NUM_IN // TILE_IN) * GROUP + own
    row = gl.program_id(0) * OUT + number
    if IS_GATED:
        row += local % 2 * (gl.num_programs(0) * OUT)
    column = tile % (NUM_IN // TILE_IN) * TILE_IN + gl.arange(0, TILE_IN, gl.SliceLayout(0, COPIES))
    copy_to_shared(
        tiles.index(slot),
        weight + gl.expand_dims(row.to(gl.int64) * NUM_IN, 1) + gl.expand_dims(column, 0),
        mask=gl.expand_dims((own < GROUP) & (number < OUT), 1) & gl.expand_dims(column < NUM_IN, 0),
        eviction_policy="evict_first",
    )


@gluon.jit
def copy_ahead(
    tile,
    tiles,
    output,
    gate_up,
    down,
    gate,
    projection,
    HIDDEN: gl.constexpr,
    QUERIES: gl.constexpr,
    MLP: gl.constexpr,
    PER_LAYER: gl.constexpr,
    NUM_PROGRAMS: gl.constexpr,
):
    """Start to copy a tile, counted through all products. Behind the last there is nothing to copy, and counted too."""
    STAGES: gl.constexpr = tiles.shape[0]
    OUT: gl.constexpr = HIDDEN // NUM_PROGRAMS
    GATES: gl.constexpr = MLP // NUM_PROGRAMS
    GATED: gl.constexpr = PER_LAYER // NUM_PROGRAMS
    GATE_UP_FROM: gl.constexpr = num_tiles(OUT, QUERIES, False)
    DOWN_FROM: gl.constexpr = GATE_UP_FROM + num_tiles(GATES, HIDDEN, True)
    GATE_FROM: gl.constexpr = DOWN_FROM + num_tiles(OUT, MLP, False)
    PROJECTION_FROM: gl.constexpr = GATE_FROM + num_tiles(GATED, HIDDEN, False)
    END: gl.constexpr = PROJECTION_FROM + num_tiles(OUT, PER_LAYER, False)
    slot = tile % STAGES
    if tile < GATE_UP_FROM:
        copy_tile_of(output, tiles, slot, tile, OUT, QUERIES, False)
    elif tile < DOWN_FROM:
        copy_tile_of(gate_up, tiles, slot, tile - GATE_UP_FROM, GATES, HIDDEN, True)
    elif tile < GATE_FROM:
        copy_tile_of(down, tiles, slot, tile - DOWN_FROM, OUT, MLP, False)
    elif PER_LAYER > 0:
        if tile < PROJECTION_FROM:
            copy_tile_of(gate, tiles, slot, tile - GATE_FROM, GATED, HIDDEN, False)
        elif tile < END:
            copy_tile_of(projection, tiles, slot, tile - PROJECTION_FROM, OUT, PER_LAYER, False)
    commit_copies()


@gluon.jit
def inputs_of(inputs, number):
    """Two of [ROWS, HALF], all rows of them the one row: its inputs of a tile."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NUM_WARPS, 1], [16, TILE_OUT, 16])
    VALUES: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    first = gl.expand_dims(inputs.index(2 * number).load(gl.SliceLayout(0, VALUES)), 0)
    second = gl.expand_dims(inputs.index(2 * number + 1).load(gl.SliceLayout(0, VALUES)), 0)
    return first.broadcast_to([ROWS, HALF]), second.broadcast_to([ROWS, HALF])


@gluon.jit
def multiply(
    tile,  # the number of the first
    inputs,
    tiles,
    output,
    gate_up,
    down,
    gate,
    projection,
    NUM_IN: gl.constexpr,
    HIDDEN: gl.constexpr,
    QUERIES: gl.constexpr,
    MLP: gl.constexpr,
    PER_LAYER: gl.constexpr,
    NUM_PROGRAMS: gl.constexpr,
):
    """The sums of a group of outputs, [ROWS, TILE_OUT]."""
    STAGES: gl.constexpr = tiles.shape[0]
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NUM_WARPS, 1], [16, TILE_OUT, 16])
    first, second = inputs_of(inputs, 0)
    first_before, second_before = first, second
    sums = gl.zeros([ROWS, TILE_OUT], gl.float32, SUMS)
    for number in range(0, NUM_IN // TILE_IN):
        wait_for_copies(STAGES - 3)
        fence_async_shared()
        thread_barrier()
        # Two products are under way while all that the next two need is made: each has registers of its own.
        values = tiles.index(tile % STAGES).permute((1, 0))
        product = warpgroup_mma(first, values.slice(0, HALF, dim=0), sums, is_async=True)
        product = warpgroup_mma(second, values.slice(HALF, HALF, dim=0), product, is_async=True)
        # Those of two tiles ago have ended for every warp: another tile takes their place.
        copy_ahead(
            tile + STAGES - 2, tiles, output, gate_up, down, gate, projection,
            HIDDEN, QUERIES, MLP, PER_LAYER, NUM_PROGRAMS,
        )  # fmt: skip
        sums, _, _ = warpgroup_mma_wait(2, deps=(product, first_before, second_before))
        first_before, second_before = first, second
        first, second = inputs_of(inputs, gl.minimum(number + 1, NUM_IN // TILE_IN - 1))
        tile += 1
    sums, _, _ = warpgroup_mma_wait(0, deps=(sums, first_before, second_before))
    return sums, tile


@gluon.jit
def places_of(group, OUT: gl.constexpr, IS_GATED: gl.constexpr):
    """Where a group's sums belong, [ROWS, TILE_OUT], and whether they do: those of one row, and outputs that are there.
    Of gates and what they open, both belong to the same place."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NUM_WARPS, 1], [16, TILE_OUT, 16])
    GROUP: gl.constexpr = per_group(OUT, IS_GATED)
    own = gl.arange(0, TILE_OUT, gl.SliceLayout(0, SUMS))
    own = own // 2 if IS_GATED else own
    number = group * GROUP + own
    row = gl.expand_dims(gl.arange(0, ROWS, gl.SliceLayout(1, SUMS)), 1)
    place = gl.expand_dims(gl.program_id(0) * OUT + number, 0) + 0 * row
    return place, gl.expand_dims((own < GROUP) & (number < OUT), 0) & (row == 0)


@gluon.jit
def halves(values):
    """[ROWS, TILE_OUT] -> two of [ROWS, TILE_OUT / 2]: gates, and what they open."""
    return gl.split(gl.reshape(values, [ROWS, TILE_OUT // 2, 2]))


@gluon.jit
def take_inputs(source, inputs, NUM_IN: gl.constexpr):
    """A row from memory to shared memory, all of whose loads are on their way at once."""
    LOADS: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [NUM_WARPS, 1], [1, 0])
    row = gl.expand_dims(gl.arange(0, INPUTS, gl.SliceLayout(1, LOADS)), 1)
    column = gl.expand_dims(gl.arange(0, TILE_IN, gl.SliceLayout(0, LOADS)), 0)
    for part in gl.static_range(0, (NUM_IN + INPUTS * TILE_IN - 1) // (INPUTS * TILE_IN)):
        place = part * INPUTS * TILE_IN + row * TILE_IN + column
        # Not by way of the first-level cache, which may hold what was there before.
        values = gl.load(source + place, mask=place < NUM_IN, other=0.0, cache_modifier=".cg")
        inputs.index(part).store(values)
    thread_barrier()


@gluon.jit
def norm_places(BLOCK: gl.constexpr):
    """[BLOCK / 4096, 16, 256]: what a thread holds of a row is what a thread of the kernel for several rows holds."""
    RUNS: gl.constexpr = BLOCK // (NORM_WARPS * 256)
    NORM: gl.constexpr = gl.BlockedLayout([RUNS, 1, 8], [1, 1, 32], [1, NUM_WARPS, 1], [2, 1, 0])
    COLUMN: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(0, NORM))
    WARP: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(0, NORM))
    RUN: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, NORM))
    column = gl.expand_dims(gl.expand_dims(gl.arange(0, 256, COLUMN), 0), 0)
    warp = gl.expand_dims(gl.expand_dims(gl.arange(0, NORM_WARPS, WARP), 1), 0)
    run = gl.expand_dims(gl.expand_dims(gl.arange(0, RUNS, RUN), 1), 2)
    return (run * NORM_WARPS + warp) * 256 + column


@gluon.jit
def normalised(x, eps, WIDTH: gl.constexpr):
    """x / rms(x): each warp's numbers first, then the warps' sums."""
    RUNS: gl.constexpr = x.shape[0]
    squares = gl.reshape(gl.permute(x * x, (1, 0, 2)), [NORM_WARPS, RUNS * 256])
    of_warps = gl.convert_layout(gl.sum(squares, 1), gl.BlockedLayout([1], [32], [NUM_WARPS], [0]))
    return x * gl.rsqrt(gl.sum(of_warps, 0) / WIDTH + eps)


@gluon.jit
def rounded(value, like):
    """`value` as the elements behind the pointer `like` would hold it, in float32 again."""
    return value.to(like.dtype.element_ty).to(gl.float32)


@gluon.jit
def keep(values, place):
    place.store(gl.reshape(values, place.shape))


@gluon.jit
def add_normed(kept, source, factor, eps, WIDTH: gl.constexpr, BLOCK: gl.constexpr):
    """What is kept, a row of the stream, plus norm(source), which programs have stored."""
    places = norm_places(BLOCK)
    # Each thread reads what it has written.
    RUNS: gl.constexpr = BLOCK // (NORM_WARPS * 256)
    NORM: gl.constexpr = gl.BlockedLayout([RUNS, 1, 8], [1, 1, 32], [1, NUM_WARPS, 1], [2, 1, 0])
    stream = kept._reinterpret(kept.dtype, [RUNS, NORM_WARPS, 256], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])).load(
        NORM
    )
    stream = stream.to(gl.float32)
    update = gl.load(source + places, mask=places < WIDTH, other=0.0, cache_modifier=".cg").to(gl.float32)
    return rounded(stream + rounded(normalised(update, eps, WIDTH) * factor, source), source)


@gluon.jit
def factor_of(weight, WIDTH: gl.constexpr, BLOCK: gl.constexpr):
    places = norm_places(BLOCK)
    return gl.load(weight + places, mask=places < WIDTH, other=0.0)


@gluon.jit(do_not_specialize=["eps"])
def after_attention_kernel(
    attended,
    stream,
    per_layer_input,
    output,
    gate_up,
    down,
    gate,
    projection,
    output_norm,
    gate_up_norm,
    down_norm,
    projection_norm,
    next_norm,
    scale,
    products,  # [3 HIDDEN + MLP + PER_LAYER], what programs pass to each other
    new,
    normed,
    arrivals,
    eps,
    HIDDEN: gl.constexpr,
    QUERIES: gl.constexpr,
    MLP: gl.constexpr,
    PER_LAYER: gl.constexpr,  # 0: there is no gate for it
    BLOCK: gl.constexpr,  # of norms
    STAGES: gl.constexpr,
    NUM_PROGRAMS: gl.constexpr,
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    OUT: gl.constexpr = HIDDEN // NUM_PROGRAMS
    GATES: gl.constexpr = MLP // NUM_PROGRAMS
    GATED: gl.constexpr = PER_LAYER // NUM_PROGRAMS
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    IN_ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    RUNS: gl.constexpr = BLOCK // (NORM_WARPS * 256)
    PARTS: gl.constexpr = (max(QUERIES, MLP) + INPUTS * TILE_IN - 1) // (INPUTS * TILE_IN)
    DTYPE: gl.constexpr = stream.dtype.element_ty

    of_output, of_down, of_projection = products, products + HIDDEN, products + 2 * HIDDEN
    hidden, gated = products + 3 * HIDDEN, products + 3 * HIDDEN + MLP

    TILES: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE_OUT, TILE_IN], DTYPE)
    tiles = allocate_shared_memory(DTYPE, [STAGES, TILE_OUT, TILE_IN], TILES)
    passed = allocate_shared_memory(DTYPE, [PARTS, INPUTS, TILE_IN], PLAIN)
    normal = allocate_shared_memory(DTYPE, [RUNS * NORM_WARPS, 256], PLAIN)
    kept = allocate_shared_memory(DTYPE, [RUNS * NORM_WARPS, 256], PLAIN)
    passed_rows = passed._reinterpret(DTYPE, [2 * PARTS * INPUTS, HALF], IN_ROWS)
    kept_rows = kept._reinterpret(DTYPE, [2 * RUNS * NORM_WARPS, HALF], IN_ROWS)
    normal_rows = normal._reinterpret(DTYPE, [2 * RUNS * NORM_WARPS, HALF], IN_ROWS)
    for tile in range(0, STAGES - 2):
        copy_ahead(tile, tiles, output, gate_up, down, gate, projection, HIDDEN, QUERIES, MLP, PER_LAYER, NUM_PROGRAMS)
    wait_for_previous(IS_DEPENDENT)

    take_inputs(attended, passed, QUERIES)
    places = norm_places(BLOCK)
    is_there = places < HIDDEN
    keep(gl.load(stream + places, mask=is_there, other=0.0), kept)
    tile = 0
    for group in range(0, num_groups(OUT, False)):
        sums, tile = multiply(
            tile, passed_rows, tiles, output, gate_up, down, gate, projection,
            QUERIES, HIDDEN, QUERIES, MLP, PER_LAYER, NUM_PROGRAMS,
        )  # fmt: skip
        place, is_out = places_of(group, OUT, False)
        gl.store(of_output + place, sums.to(DTYPE), mask=is_out)
    factor, next_factor = factor_of(output_norm, HIDDEN, BLOCK), factor_of(gate_up_norm, HIDDEN, BLOCK)
    meet(arrivals, NUM_PROGRAMS)

    row = add_normed(kept, of_output, factor, eps, HIDDEN, BLOCK)
    keep(row.to(DTYPE), kept)
    following = (normalised(row, eps, HIDDEN) * next_factor).to(DTYPE)
    keep(following, normal)
    thread_barrier()
    for group in range(0, num_groups(GATES, True)):
        sums, tile = multiply(
            tile, normal_rows, tiles, output, gate_up, down, gate, projection,
            HIDDEN, HIDDEN, QUERIES, MLP, PER_LAYER, NUM_PROGRAMS,
        )  # fmt: skip
        place, is_out = places_of(group, GATES, True)
        opening, opened = halves(sums.to(DTYPE))
        place, _ = halves(place)
        is_out, _ = halves(is_out)
        gl.store(hidden + place, let_through(opening, opened), mask=is_out)
    meet(arrivals, NUM_PROGRAMS)

    take_inputs(hidden, passed, MLP)
    for group in range(0, num_groups(OUT, False)):
        sums, tile = multiply(
            tile, passed_rows, tiles, output, gate_up, down, gate, projection,
            MLP, HIDDEN, QUERIES, MLP, PER_LAYER, NUM_PROGRAMS,
        )  # fmt: skip
        place, is_out = places_of(group, OUT, False)
        gl.store(of_down + place, sums.to(DTYPE), mask=is_out)
    last, last_norm = of_down, down_norm
    if PER_LAYER > 0:
        factor = factor_of(down_norm, HIDDEN, BLOCK)
        meet(arrivals, NUM_PROGRAMS)
        row = add_normed(kept, of_down, factor, eps, HIDDEN, BLOCK)
        keep(row.to(DTYPE), kept)
        thread_barrier()
        for group in range(0, num_groups(GATED, False)):
            sums, tile = multiply(
                tile, kept_rows, tiles, output, gate_up, down, gate, projection,
                HIDDEN, HIDDEN, QUERIES, MLP, PER_LAYER, NUM_PROGRAMS,
            )  # fmt: skip
            place, is_out = places_of(group, GATED, False)
            given = gl.load(per_layer_input + place, mask=is_out, other=0.0)
            gl.store(gated + place, let_through(sums.to(DTYPE), given), mask=is_out)
        meet(arrivals, NUM_PROGRAMS)

        take_inputs(gated, passed, PER_LAYER)
        for group in range(0, num_groups(OUT, False)):
            sums, tile = multiply(
                tile, passed_rows, tiles, output, gate_up, down, gate, projection,
                PER_LAYER, HIDDEN, QUERIES, MLP, PER_LAYER, NUM_PROGRAMS,
            )  # fmt: skip
            place, is_out = places_of(group, OUT, False)
            gl.store(of_projection + place, sums.to(DTYPE), mask=is_out)
        last, last_norm = of_projection, projection_norm

    wait_for_copies(0)
    before = arrive(arrivals)
    if (before & (NUM_PROGRAMS - 1)) == NUM_PROGRAMS - 1:
        row = add_normed(kept, last, factor_of(last_norm, HIDDEN, BLOCK), eps, HIDDEN, BLOCK)
        if scale is not None:
            row = rounded(row * gl.load(scale).to(gl.float32), new)
        gl.store(new + places, row.to(DTYPE), mask=is_there)
        if next_norm is not None:
            row = normalised(row, eps, HIDDEN) * factor_of(next_norm, HIDDEN, BLOCK)
            gl.store(normed + places, row.to(DTYPE), mask=is_there)
