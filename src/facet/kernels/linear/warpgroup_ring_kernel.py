"""Products of few rows in one chain of sums (`chain.py`) by the products of Hopper's warpgroups, in Gluon.

A product of one warp waits for the one before it, of whose chain there are hundreds: down of E4B has 640, which take
two thirds of its time in `ring_kernel.py`. Products of a warpgroup (`wgmma`) follow each other more closely
(`warpgroup_ring_parts.py`). With x on their left, of which 64 rows would be read at every product, down takes 16.3 µs
and not 13.8.

The weight's first tiles are on their way before the kernel waits for the one before it.
"""

from facet.kernels.linear.language import gl, gluon, let_next_start, let_through, wait_for_previous
from facet.kernels.linear.warpgroup_ring_parts import (
    copy_rows,
    copy_weights,
    expect_tile,
    layout_of_results,
    make_ring,
    num_groups,
    places_of_results,
    results_of,
    sums_through_ring,
)


# One compilation serves all row counts of a kind, so that a count first met while serving compiles nothing.
@gluon.jit(do_not_specialize=["num_rows"])
def warpgroup_ring_kernel(
    x,  # tiles of it
    weight,  # tiles of [eights of outputs, 1, 64s of inputs, 8, 64], or of gates and ups, with 2 in place of 1
    more_weight,  # likewise, of a program's outputs behind those; or None
    gated,
    output,
    gated_stride,
    num_rows,
    num_out,
    NUM_IN: gl.constexpr,
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    STAGES: gl.constexpr,
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    ROWS: gl.constexpr = x.block_shape[0]  # of a program: 8, 16, 32 or 64
    NUM_TILES: gl.constexpr = (NUM_IN + x.block_shape[1] - 1) // x.block_shape[1]
    NUM_FIRST: gl.constexpr = STAGES if STAGES < NUM_TILES else NUM_TILES
    weights = (weight,) if more_weight is None else (weight, more_weight)

    # Programs that share a tile of the weight run side by side: one reads it from memory, the others from the cache.
    num_row_groups = gl.cdiv(num_rows, ROWS)
    first_row = gl.program_id(0) % num_row_groups * ROWS
    group = gl.program_id(0) // num_row_groups * num_groups(weights)

    ring = make_ring(x, weights, STAGES)
    for tile in gl.static_range(NUM_FIRST):
        expect_tile(x, weights, ring, tile)
        copy_weights(weights, ring, tile, group, 0)
    wait_for_previous(IS_DEPENDENT)
    for tile in gl.static_range(NUM_FIRST):
        copy_rows(x, ring, tile, first_row)

    RESULTS: gl.constexpr = layout_of_results(weights, ROWS)
    row, out, has_output = places_of_results(weights, group, first_row, num_out, ROWS, RESULTS)
    is_there = has_output & (row < num_rows)
    if HAS_GATED_INPUT:
        up = gl.load(gated + row.to(gl.int64) * gated_stride + out, mask=is_there, other=0.0)
    sums = sums_through_ring(x, weights, ring, first_row, group, 0, NUM_TILES)
    result = results_of(sums, weights, output.dtype.element_ty, RESULTS)
    if HAS_GATED_INPUT:
        result = let_through(result, up)
    gl.store(output + row.to(gl.int64) * num_out + out, result, mask=is_there)
