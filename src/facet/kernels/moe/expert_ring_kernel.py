"""Products of experts for few rows on Hopper GPUs, in Gluon: through rings, as of other weights
(`linear/warpgroup_ring_parts.py`).

A program multiplies all rows by some outputs of one expert, for that takes tensor cores no longer than the rows alone
that chose it, and nobody has to sort them. It belongs to a pair of a row and one of its choices. Where an earlier pair
has the same expert, it has nothing to do.

    first     all rows, in gate and up -> [pairs, rows of a tile, width], of pairs that are the first of their experts
    second    these, in down           -> results by pair, of rows that chose the expert
"""

# mypy: disable-error-code=assignment
# ruff: noqa: RUF005  Triton adds tuples, and does not unpack them into others

from facet.kernels.linear.units import UNIT_ROWS
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
from facet.kernels.moe.language import gl, gluon, let_next_start, wait_for_previous

# The layout of the ids of all pairs.
PAIRS = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def _is_repeated(chosen, pair, expert, num_pairs, MOST_PAIRS: gl.constexpr):
    pairs = gl.arange(0, MOST_PAIRS, PAIRS)
    others = gl.load(chosen + pairs, mask=pairs < num_pairs, other=-1).to(gl.int32)
    return gl.max(gl.where((others == expert) & (pairs < pair), 1, 0), 0)


# Not specialized: one kernel serves all numbers of rows of a kind.
@gluon.jit(do_not_specialize=["num_rows"])
def expert_ring_kernel(
    x,  # tiles of the rows, or of what the first product left
    weight,  # tiles of [eights of outputs, experts, 64s of inputs, 8, 64]; gates and ups are two of the second
    more_weight,  # likewise, of a program's outputs behind those; or None
    chosen,
    result,
    num_rows,
    num_out,
    NUM_IN: gl.constexpr,
    NUM_CHOSEN: gl.constexpr,
    CHOSEN_PAD: gl.constexpr,
    STAGES: gl.constexpr,
    IS_DEPENDENT: gl.constexpr,
):
    let_next_start(IS_DEPENDENT)
    ROWS: gl.constexpr = x.block_shape[0]  # all that there are, and others
    IS_FIRST: gl.constexpr = weight.block_shape[1] == 2
    NUM_TILES: gl.constexpr = (NUM_IN + x.block_shape[1] - 1) // x.block_shape[1]
    NUM_FIRST: gl.constexpr = STAGES if STAGES < NUM_TILES else NUM_TILES
    weights = (weight,) if more_weight is None else (weight, more_weight)
    num_programs = gl.cdiv(num_out, num_groups(weights) * UNIT_ROWS)  # of a pair
    pair = gl.program_id(0) // num_programs
    group = gl.program_id(0) % num_programs * num_groups(weights)
    wait_for_previous(IS_DEPENDENT)
    expert = gl.load(chosen + pair).to(gl.int32)
    if _is_repeated(chosen, pair, expert, num_rows * NUM_CHOSEN, ROWS * CHOSEN_PAD):
        return
    first_row = 0 if IS_FIRST else pair * ROWS

    ring = make_ring(x, weights, STAGES)
    for tile in gl.static_range(NUM_FIRST):
        expect_tile(x, weights, ring, tile)
        copy_weights(weights, ring, tile, group, expert)
        copy_rows(x, ring, tile, first_row)

    RESULTS: gl.constexpr = layout_of_results(weights, ROWS)
    row, out, is_there = places_of_results(weights, group, 0, num_out, ROWS, RESULTS)
    chose = ()
    for choice in gl.static_range(0 if IS_FIRST else NUM_CHOSEN):
        ids = gl.load(chosen + row * NUM_CHOSEN + choice, mask=row < num_rows, other=-1)
        chose = chose + (is_there & (ids.to(gl.int32) == expert),)
    sums = sums_through_ring(x, weights, ring, first_row, group, expert, NUM_TILES)
    values = results_of(sums, weights, result.dtype.element_ty, RESULTS)
    if IS_FIRST:
        gl.store(result + (pair * ROWS + row).to(gl.int64) * num_out + out, values, mask=is_there)
    for choice in gl.static_range(0 if IS_FIRST else NUM_CHOSEN):  # ranks may let a row have an expert twice
        place = (row * NUM_CHOSEN + choice).to(gl.int64)
        gl.store(result + place * num_out + out, values, mask=chose[choice])
