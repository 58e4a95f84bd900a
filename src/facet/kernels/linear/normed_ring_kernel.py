"""Products of one row through rings (`warpgroup_ring_parts.py`) that make the row themselves, in Gluon: what is added
to the stream, and the norm behind it.

Every program makes the whole row, which costs less than to wait for a kernel that makes it once: the weight's first
tiles are on their way meanwhile. The first program stores the stream. Sums over the row are added in the order of
`add_norm`, whose warps have 256 columns each, and a thread eight of them.
"""

# mypy: disable-error-code=assignment
# ruff: noqa: RUF005  Triton adds tuples, and does not unpack them into others

from facet.kernels.linear.language import (
    fence_async_shared,
    gl,
    gluon,
    let_next_start,
    let_through,
    thread_barrier,
    wait_for_previous,
)
from facet.kernels.linear.units import UNIT_INPUTS, UNIT_ROWS, first_row_of_units
from facet.kernels.linear.warpgroup_ring_parts import (
    block_inputs,
    copy_weights,
    expect_tile,
    layout_of_results,
    num_groups,
    places_of_results,
    results_of,
    ring_beside,
    sums_through_ring,
)

# Columns that four warps have.
PART = gl.constexpr(1024)
COLUMNS = gl.constexpr(gl.BlockedLayout([8], [32], [4], [0]))


@gluon.jit
def _load(pointer, part: gl.constexpr, WIDTH: gl.constexpr):
    """A part of a row in float32; zeros behind the row's end."""
    columns = part * PART + gl.arange(0, PART, COLUMNS)
    return gl.load(pointer + columns, mask=columns < WIDTH, other=0.0).to(gl.float32)


@gluon.jit
def _by_warp(values):
    """Sums of squares, [warps]."""
    squares = gl.reshape(values * values, [PART // 256, 32, 8])
    return gl.sum(gl.sum(squares, 2), 1)


@gluon.jit
def _inverse_rms(parts, eps, WIDTH: gl.constexpr):
    """1 / rms of a row. Each part has the columns of four warps: warps 0 to 3, 4 to 7 and so on. First the upper half
    of the warps is added to the lower, and so on."""
    squares = _by_warp(parts[0])
    if len(parts) > 2:
        squares += _by_warp(parts[2])
    others = _by_warp(parts[1])
    if len(parts) > 3:
        others += _by_warp(parts[3])
    return gl.rsqrt(gl.sum(squares + others, 0) / WIDTH + eps)


@gluon.jit
def _rounded(values, dtype: gl.constexpr):
    return values.to(dtype).to(gl.float32)


@gluon.jit
def normed_ring_kernel(
    residual,
    update,
    update_weight,
    next_weight,  # or None: the product takes the stream as it is
    scale,  # or None
    stream,  # where the first program stores it
    weight,  # tiles of [eights of outputs, 1, 64s of inputs, 8, 64], or of gates and ups, with 2 in place of 1
    more_weight,  # likewise, of a program's outputs behind those; or None
    gated,
    output,
    eps,
    num_out,
    NUM_IN: gl.constexpr,
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    STAGES: gl.constexpr,
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    weights = (weight,) if more_weight is None else (weight, more_weight)
    NUM_TILES: gl.constexpr = (NUM_IN + block_inputs(weights) - 1) // block_inputs(weights)
    NUM_FIRST: gl.constexpr = STAGES if STAGES < NUM_TILES else NUM_TILES
    NUM_PARTS: gl.constexpr = (NUM_IN + PART - 1) // PART
    dtype: gl.constexpr = weight.dtype
    group = gl.program_id(0) * num_groups(weights)

    UNIT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([UNIT_ROWS, UNIT_INPUTS], dtype)
    NUM_UNITS: gl.constexpr = PART // UNIT_INPUTS
    x = gl.allocate_shared_memory(dtype, [NUM_PARTS * NUM_UNITS, UNIT_ROWS, UNIT_INPUTS], UNIT)
    ring = ring_beside(x, weights, STAGES)
    for tile in gl.static_range(NUM_FIRST):
        expect_tile(None, weights, ring, tile)
        copy_weights(weights, ring, tile, group, 0)

    update_factors, next_factors = (), ()
    for part in gl.static_range(NUM_PARTS):
        update_factors = update_factors + (_load(update_weight, part, NUM_IN),)
        if next_weight is not None:
            next_factors = next_factors + (_load(next_weight, part, NUM_IN),)
    if scale is not None:
        stream_factor = gl.load(scale).to(gl.float32)
    wait_for_previous(IS_DEPENDENT)
    updates, streams = (), ()
    for part in gl.static_range(NUM_PARTS):
        updates = updates + (_load(update, part, NUM_IN),)
        streams = streams + (_load(residual, part, NUM_IN),)
    inverse = _inverse_rms(updates, eps, NUM_IN)
    values = ()
    for part in gl.static_range(NUM_PARTS):
        value = _rounded(streams[part] + _rounded(updates[part] * inverse * update_factors[part], dtype), dtype)
        if scale is not None:
            value = _rounded(value * stream_factor, dtype)
        values = values + (value,)
    if gl.program_id(0) == 0:
        for part in gl.static_range(NUM_PARTS):
            columns = part * PART + gl.arange(0, PART, COLUMNS)
            gl.store(stream + columns, values[part].to(dtype), mask=columns < NUM_IN)
    if next_weight is not None:
        inverse = _inverse_rms(values, eps, NUM_IN)
    for part in gl.static_range(NUM_PARTS):
        value = values[part]
        if next_weight is not None:
            value = value * inverse * next_factors[part]
        row = gl.reshape(value.to(dtype), [NUM_UNITS, 1, UNIT_INPUTS])
        first_row_of_units(x, part * NUM_UNITS, NUM_UNITS).store(row)
    fence_async_shared()
    thread_barrier()  # now the whole row can be read

    RESULTS: gl.constexpr = layout_of_results(weights, UNIT_ROWS)
    row, out, has_output = places_of_results(weights, group, 0, num_out, UNIT_ROWS, RESULTS)
    is_there = has_output & (row == 0)
    place = row * num_out + out
    if HAS_GATED_INPUT:
        up = gl.load(gated + place, mask=is_there, other=0.0)
    sums = sums_through_ring(None, weights, ring, 0, group, 0, NUM_TILES)
    result = results_of(sums, weights, dtype, RESULTS)
    if HAS_GATED_INPUT:
        result = let_through(result, up)
    gl.store(output + place, result, mask=is_there)
