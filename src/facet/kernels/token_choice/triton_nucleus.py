"""Handles rows cut by top_p or min_p without top_k: the mass of the vocabulary, the cut, and the race above it.

The nucleus is found without ranking: `weigh_kernel` sums the mass of the vocabulary and of what lies above a few
pivots; `cut_kernel`, one program per row, bisects between two of them for the last kept token. Masses are integers, so
sums do not depend on their order and the cut is the reference's. A nucleus whose tokens lie in few chunks (the usual
one) is bisected in registers; a wider one is looked for by reading the row again and again, slower and still right.

The cut is a (key, id): kept are the tokens with a larger key, and with this key those up to this id.
"""

import triton
import triton.language as tl

from facet.kernels.token_choice.triton_order import (
    FIXED_POINT,
    INFINITY_KEY,
    LACKING,
    MINUS_INFINITY_KEY,
    NO_ID,
    anchor_of,
    first_best,
    keys_of,
    logits_of,
    noise_of,
)

# The mass of tokens at most 1, 2, 3 .. temperatures below the best one, and of all. A nucleus rarely reaches below
# log(vocabulary / (1 - top_p)), about 15, for what lies there is too little even together.
NUM_PIVOTS = 16
_NUM_PIVOTS = tl.constexpr(NUM_PIVOTS)
# Chunks whose members one program holds at once: more would not fit into its registers.
_HELD_CHUNKS = tl.constexpr(128)
# Tokens that are read at once where they are more.
_TILE = tl.constexpr(4096)


@triton.jit
def _pivot_key(pivot, best, temperature):
    """Tokens from this key on belong to the pivot. The last one's is below everything."""
    depth = temperature * (pivot + 1)
    return tl.where(pivot == _NUM_PIVOTS - 1, LACKING, keys_of(anchor_of(best) - depth, True))


@triton.jit
def _weights(keys, best, temperature, min_p):
    """Weights relative to the row's best token; 0 for what min_p or a mask excludes."""
    logits = logits_of(tl.maximum(keys, MINUS_INFINITY_KEY))
    weights = tl.exp((logits - anchor_of(best)) / temperature)
    return tl.where(weights < min_p, 0.0, weights)


@triton.jit
def _masses(keys, best, temperature, min_p):
    return (_weights(keys, best, temperature, min_p) * FIXED_POINT).to(tl.int64)


@triton.jit
def _row_best(scratch, num_slices, SLICES_PAD: tl.constexpr):
    slices = tl.arange(0, SLICES_PAD)
    return tl.max(tl.load(scratch + slices, mask=slices < num_slices, other=LACKING), axis=0)


@triton.jit
def _can_choose(best):
    return (best > MINUS_INFINITY_KEY) & (best < INFINITY_KEY)


@triton.jit
def _slice_keys(logits, vocab_size, slice, SLICE: tl.constexpr):
    ids = slice * SLICE + tl.arange(0, SLICE)
    is_live = ids < vocab_size
    return ids, keys_of(tl.load(logits + ids, mask=is_live, other=float("-inf")).to(tl.float32), is_live)


@triton.jit
def weigh_kernel(
    logits,
    row_stride,
    vocab_size,
    settings,
    noise_keys,
    scratch,
    scratch_stride,
    num_slices,
    masses,
    SLICES_PAD: tl.constexpr,
    SLICE: tl.constexpr,
):
    """One slice of one row: its mass above each pivot, into masses [rows, slices, pivots]."""
    slice, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    is_nucleus = (tl.load(settings + row * 4 + 1) >= vocab_size) & (tl.load(settings + row * 4 + 2) < 1)
    if is_nucleus:
        best = _row_best(scratch + row * scratch_stride, num_slices, SLICES_PAD)
        if _can_choose(best):
            temperature = tl.load(settings + row * 4).to(tl.float32)
            min_p = tl.load(settings + row * 4 + 3).to(tl.float32)
            _, keys = _slice_keys(logits + row * row_stride, vocab_size, slice, SLICE)
            token_masses = _masses(keys, best, temperature, min_p)
            slice_best = tl.load(scratch + row * scratch_stride + slice)
            for pivot in tl.static_range(_NUM_PIVOTS):
                pivot_key = _pivot_key(pivot, best, temperature)
                mass = tl.full([], 0, tl.int64)
                if slice_best >= pivot_key:
                    mass = tl.sum(tl.where(keys >= pivot_key, token_masses, 0), axis=0)
                tl.store(masses + (row * num_slices + slice) * _NUM_PIVOTS + pivot, mass)


@triton.jit
def cut_kernel(
    logits,
    row_stride,
    vocab_size,
    settings,
    noise_keys,
    scratch,
    scratch_stride,
    num_slices,
    masses,
    cut_offset,
    SLICES_PAD: tl.constexpr,
    SLICE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One row: the last token of its nucleus, into the row's scratch."""
    row = tl.program_id(0).to(tl.int64)
    is_nucleus = (tl.load(settings + row * 4 + 1) >= vocab_size) & (tl.load(settings + row * 4 + 2) < 1)
    scratch += row * scratch_stride
    logits += row * row_stride
    best = _row_best(scratch, num_slices, SLICES_PAD)
    if is_nucleus & _can_choose(best):
        temperature = tl.load(settings + row * 4).to(tl.float32)
        top_p = tl.load(settings + row * 4 + 2)
        min_p = tl.load(settings + row * 4 + 3).to(tl.float32)
        slices = tl.arange(0, SLICES_PAD)[:, None]
        pivots = tl.arange(0, _NUM_PIVOTS)
        of_row = masses + row * num_slices * _NUM_PIVOTS
        above_pivots = tl.sum(
            tl.load(of_row + slices * _NUM_PIVOTS + pivots[None, :], mask=slices < num_slices, other=0), axis=0
        )
        total = tl.max(above_pivots, axis=0)  # the last pivot's, who has everything above it
        target = top_p * total.to(tl.float64)
        pivot = tl.min(tl.where(above_pivots.to(tl.float64) >= target, pivots, _NUM_PIVOTS - 1), axis=0)
        # A hair below the pivot, lest two kernels round it differently: what matters is that enough lies above.
        lowest = tl.maximum(_pivot_key(pivot, best, temperature), MINUS_INFINITY_KEY + 4) - 4

        num_chunks = num_slices * (SLICE // CHUNK)
        chunks = tl.arange(0, SLICES_PAD * (SLICE // CHUNK))
        chunk_keys = tl.load(scratch + 4 * num_slices + chunks, mask=chunks < num_chunks, other=LACKING)
        is_relevant = chunk_keys >= lowest
        num_relevant = tl.sum(is_relevant.to(tl.int32), axis=0)
        if num_relevant <= _HELD_CHUNKS:
            picked = scratch + 4 * num_slices + num_chunks
            tl.store(picked + tl.cumsum(is_relevant.to(tl.int32), axis=0) - 1, chunks, mask=is_relevant)
            tl.debug_barrier()  # what some threads stored, others load
            cut_key, cut_id = _cut_among_held(
                logits, vocab_size, picked, num_relevant, lowest, best, target, temperature, min_p, CHUNK
            )
        else:
            cut_key, cut_id = _cut_among_all(
                logits, vocab_size, scratch, num_slices, lowest, best, target, temperature, min_p, SLICE
            )
        tl.store(scratch + cut_offset, cut_key)
        tl.store(scratch + cut_offset + 1, cut_id)


@triton.jit
def _cut_among_held(
    logits, vocab_size, picked, num_picked, lowest, best, target, temperature, min_p, CHUNK: tl.constexpr
):
    picks = tl.arange(0, _HELD_CHUNKS)
    is_pick = picks < num_picked
    ids = tl.load(picked + picks, mask=is_pick, other=0)[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    is_live = is_pick[:, None] & (ids < vocab_size)
    members = tl.load(logits + ids, mask=is_live, other=float("-inf")).to(tl.float32)
    keys = tl.reshape(keys_of(members, is_live), [_HELD_CHUNKS * CHUNK])
    ids = tl.reshape(ids, [_HELD_CHUNKS * CHUNK])
    masses = _masses(keys, best, temperature, min_p)
    low, high = lowest.to(tl.int64), best.to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        reached = tl.sum(tl.where(keys >= middle, masses, 0), axis=0)
        is_enough = reached.to(tl.float64) >= target
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle - 1)
    above = tl.sum(tl.where(keys > low, masses, 0), axis=0)
    is_equal = keys == low
    num_kept = _num_kept(above, tl.max(tl.where(is_equal, masses, 0), axis=0), target)
    place = tl.cumsum(is_equal.to(tl.int32), axis=0)
    return low.to(tl.int32), tl.min(tl.where(is_equal & (place >= num_kept), ids, NO_ID), axis=0)


@triton.jit
def _cut_among_all(
    logits, vocab_size, slice_keys, num_slices, lowest, best, target, temperature, min_p, SLICE: tl.constexpr
):
    low, high = lowest.to(tl.int64), best.to(tl.int64)
    while low < high:
        # In quarters: weighing a token costs more than comparing it thrice.
        quarter = (high - low + 3) >> 2
        first, second, third = low + quarter, low + 2 * quarter, low + 3 * quarter
        above_first, above_second, above_third = _masses_above(
            logits, vocab_size, first, second, third, best, temperature, min_p
        )
        if above_third.to(tl.float64) >= target:
            low = third
        elif above_second.to(tl.float64) >= target:
            low, high = second, tl.minimum(high, third - 1)
        elif above_first.to(tl.float64) >= target:
            low, high = first, tl.minimum(high, second - 1)
        else:
            high = first - 1
    above, _, _ = _masses_above(logits, vocab_size, low + 1, low + 1, low + 1, best, temperature, min_p)
    num_kept = _num_kept(above, _masses(low.to(tl.int32), best, temperature, min_p), target)
    num_seen = tl.full([], 0, tl.int32)
    cut_id = tl.full([], NO_ID, tl.int32)
    for slice in range(num_slices):
        if tl.load(slice_keys + slice) >= low:
            ids, keys = _slice_keys(logits, vocab_size, slice, SLICE)
            is_equal = keys == low
            place = num_seen + tl.cumsum(is_equal.to(tl.int32), axis=0)
            cut_id = tl.minimum(cut_id, tl.min(tl.where(is_equal & (place >= num_kept), ids, NO_ID), axis=0))
            num_seen += tl.sum(is_equal.to(tl.int32), axis=0)
    return low.to(tl.int32), cut_id


@triton.jit
def _masses_above(logits, vocab_size, first, second, third, best, temperature, min_p):
    """The mass of the row's tokens from each of three keys on."""
    above_first = tl.zeros([_TILE], tl.int64)
    above_second = tl.zeros([_TILE], tl.int64)
    above_third = tl.zeros([_TILE], tl.int64)
    for tile in range(tl.cdiv(vocab_size, _TILE)):
        _, keys = _slice_keys(logits, vocab_size, tile, _TILE)
        masses = _masses(keys, best, temperature, min_p)
        above_first += tl.where(keys >= first, masses, 0)
        above_second += tl.where(keys >= second, masses, 0)
        above_third += tl.where(keys >= third, masses, 0)
    return tl.sum(above_first, axis=0), tl.sum(above_second, axis=0), tl.sum(above_third, axis=0)


@triton.jit
def _num_kept(above, mass, target):
    """How many of some tokens with equal logits, and this mass each, begin below the target; the first always does."""
    share = (target - above.to(tl.float64)) / tl.maximum(mass, 1).to(tl.float64)
    return tl.maximum(tl.ceil(share), 1.0).to(tl.int32)


@triton.jit
def race_kernel(
    logits,
    row_stride,
    vocab_size,
    settings,
    noise_keys,
    scratch,
    scratch_stride,
    num_slices,
    cut_offset,
    SLICES_PAD: tl.constexpr,
    SLICE: tl.constexpr,
):
    """One slice of one row: the race among what is left of it."""
    slice, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    scratch += row * scratch_stride
    is_open = tl.load(settings + row * 4 + 1) >= vocab_size
    has_top_p = tl.load(settings + row * 4 + 2) < 1
    min_p = tl.load(settings + row * 4 + 3).to(tl.float32)
    if is_open & (has_top_p | (min_p > 0)):
        best = _row_best(scratch, num_slices, SLICES_PAD)
        temperature = tl.load(settings + row * 4).to(tl.float32)
        cut_key = tl.full([], MINUS_INFINITY_KEY, tl.int32)
        cut_id = tl.full([], NO_ID, tl.int32)
        if has_top_p & _can_choose(best):
            cut_key = tl.load(scratch + cut_offset)
            cut_id = tl.load(scratch + cut_offset + 1)
        score = tl.full([], 0.0, tl.float32)
        winner = tl.full([], NO_ID, tl.int32)
        slice_best = tl.load(scratch + slice)
        # A slice without survivors, which is most of them, is not read again.
        if (slice_best >= cut_key) & (_weights(slice_best, best, temperature, min_p) > 0):
            ids, keys = _slice_keys(logits + row * row_stride, vocab_size, slice, SLICE)
            is_kept = (keys > cut_key) | ((keys == cut_key) & (ids <= cut_id))
            weights = tl.where(is_kept, _weights(keys, best, temperature, min_p), 0.0)
            score, winner = first_best(weights / noise_of(ids, noise_keys, row), ids)
        tl.store(scratch + 2 * num_slices + slice, score.to(tl.int32, bitcast=True))
        tl.store(scratch + 3 * num_slices + slice, winner)
