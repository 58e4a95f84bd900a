"""Chooses tokens in Triton: one pass over the logits, then one program per row that decides.

The pass cuts a row into slices. Of each slice it keeps the best token, the winner of the slice's own race where the row
is open and nothing is to be cut, and the largest logit of each chunk where the row is narrow. The deciding program
puts the slices together, or, for a narrow row, picks the k best chunks (the best k tokens lie in them), of their
members the k best, and lets those race. Nothing is sorted: k are selected by bisecting a threshold, and a token's
rank among k is a count. Rows that are cut by top_p or min_p without top_k race in a second pass (`triton_nucleus`).

Same meaning as `reference.py`, for top_k up to 128. The noise bits are the same; weights may differ in the last
places, so that two tokens whose race is decided there may change places.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.token_choice.outcome import ChoiceSettings, Outcome
from facet.kernels.token_choice.triton_nucleus import NUM_PIVOTS, cut_kernel, race_kernel, weigh_kernel
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
    select_largest,
)

# A slice is a program's share: 8 KB of float32, enough of them to fill a GPU from one row of a large vocabulary.
SLICE = 2048
# Chunks and members of chunks are ranked by one program each: this size balances the two for top_k 64 of 262,144.
CHUNK = 64
# Paddings of top_k; few, because each is one more kernel to compile.
_PICKS = (64, 128)

# A row's scratch, int32: for every slice its best key, that token, the race's best score (float32 bits) and its
# winner; the chunks' best keys; the picked chunks; the picked members' keys and ids; the cut's key and id.
_MAX_PICKS = 128
_CUT = 3 * _MAX_PICKS
_AFTER_CHUNKS = _CUT + 16  # and some, so that rows stay aligned


def choose_tokens(
    logits: Tensor, settings: ChoiceSettings, noise_keys: Tensor | None, raw_max: Tensor | None = None
) -> Outcome:
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1, "the logits of a row are contiguous"
    outcome = Outcome.empty(num_rows, logits.device)
    samples = not settings.is_greedy
    assert noise_keys is not None or not samples, "a row samples, so the step needs noise keys"
    num_slices = triton.cdiv(vocab_size, SLICE)
    row_scratch = num_slices * (4 + SLICE // CHUNK) + _AFTER_CHUNKS
    scratch = torch.empty(num_rows, row_scratch, dtype=torch.int32, device=logits.device)
    keys = scratch if noise_keys is None else noise_keys
    of_rows = (logits, logits.stride(0), vocab_size, settings.by_row, keys, scratch, scratch.stride(0), num_slices)
    slices = (num_slices, num_rows)
    _scan_kernel[slices](*of_rows, SAMPLES=samples, SLICE=SLICE, CHUNK=CHUNK, num_warps=4)
    slices_pad = max(16, triton.next_power_of_2(num_slices))
    if settings.has_top_p or settings.has_min_p:
        cut_offset = num_slices * (4 + SLICE // CHUNK) + _CUT
        if settings.has_top_p:
            masses = torch.empty(num_rows, num_slices, NUM_PIVOTS, dtype=torch.int64, device=logits.device)
            shape = {"SLICES_PAD": slices_pad, "SLICE": SLICE}
            weigh_kernel[slices](*of_rows, masses, **shape, num_warps=4)
            cut_kernel[(num_rows,)](*of_rows, masses, cut_offset, CHUNK=CHUNK, **shape, num_warps=16)
        race_kernel[slices](*of_rows, cut_offset, SLICES_PAD=slices_pad, SLICE=SLICE, num_warps=4)
    narrow_k = settings.largest_narrow_k
    num_picks = 0 if narrow_k == 1 else min(picks for picks in _PICKS if picks >= narrow_k)
    _decide_kernel[(num_rows,)](
        *of_rows,
        scratch.view(torch.float32) if raw_max is None else raw_max,
        int(raw_max is not None),
        outcome.token_ids,
        outcome.is_finite,
        outcome.has_choice,
        SAMPLES=samples,
        PICKS=num_picks,
        SLICES_PAD=slices_pad,
        SLICE=SLICE,
        CHUNK=CHUNK,
        num_warps=(16 if num_picks == _MAX_PICKS else 8) if samples else 1,
    )
    return outcome


@triton.jit
def _scan_kernel(
    logits,
    row_stride,
    vocab_size,
    settings,
    noise_keys,
    scratch,
    scratch_stride,
    num_slices,
    SAMPLES: tl.constexpr,
    SLICE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One slice of one row."""
    slice, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    scratch += row * scratch_stride
    ids = slice * SLICE + tl.arange(0, SLICE)
    is_live = ids < vocab_size
    values = tl.load(logits + row * row_stride + ids, mask=is_live, other=float("-inf")).to(tl.float32)
    keys = keys_of(values, is_live)
    best, best_id = first_best(keys, ids)
    tl.store(scratch + slice, best)
    tl.store(scratch + num_slices + slice, best_id)
    if SAMPLES:
        temperature = tl.load(settings + row * 4).to(tl.float32)
        top_k = tl.load(settings + row * 4 + 1)
        is_cut = (tl.load(settings + row * 4 + 2) < 1) | (tl.load(settings + row * 4 + 3) > 0)
        races = (top_k >= vocab_size) & (is_cut == 0)
        if races:
            # Relative to the slice's best, which is near enough: `_decide_kernel` knows the row's.
            weights = tl.exp((values - anchor_of(best)) / temperature)
            score, winner = first_best(weights / noise_of(ids, noise_keys, row), ids)
            tl.store(scratch + 2 * num_slices + slice, score.to(tl.int32, bitcast=True))
            tl.store(scratch + 3 * num_slices + slice, winner)
        if (top_k > 1) & (races == 0):
            chunks = slice * (SLICE // CHUNK) + tl.arange(0, SLICE // CHUNK)
            largest = tl.max(tl.reshape(keys, [SLICE // CHUNK, CHUNK]), axis=1)
            tl.store(scratch + 4 * num_slices + chunks, largest)


@triton.jit(do_not_specialize=["has_raw_max"])
def _decide_kernel(
    logits,
    row_stride,
    vocab_size,
    settings,
    noise_keys,
    scratch,
    scratch_stride,
    num_slices,
    raw_max,
    has_raw_max,
    token_ids,
    is_finite,
    has_choice,
    SAMPLES: tl.constexpr,
    PICKS: tl.constexpr,
    SLICES_PAD: tl.constexpr,
    SLICE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One row: its token and its flags."""
    row = tl.program_id(0).to(tl.int64)
    scratch += row * scratch_stride
    slices = tl.arange(0, SLICES_PAD)
    is_slice = slices < num_slices
    slice_keys = tl.load(scratch + slices, mask=is_slice, other=LACKING)
    best, token_id = first_best(slice_keys, tl.load(scratch + num_slices + slices, mask=is_slice, other=NO_ID))
    can_choose = (best > MINUS_INFINITY_KEY) & (best < INFINITY_KEY)
    can_use = can_choose
    if has_raw_max:
        can_use = tl.abs(tl.load(raw_max + row)) < float("inf")
    if SAMPLES:
        temperature = tl.load(settings + row * 4).to(tl.float32)
        top_k = tl.load(settings + row * 4 + 1).to(tl.int32)
        top_p = tl.load(settings + row * 4 + 2)
        min_p = tl.load(settings + row * 4 + 3).to(tl.float32)
        if top_k >= vocab_size:
            scores = tl.load(scratch + 2 * num_slices + slices, mask=is_slice, other=0).to(tl.float32, bitcast=True)
            # In a second pass scores are relative to the row's best already.
            falls = (logits_of(tl.maximum(slice_keys, MINUS_INFINITY_KEY)) - anchor_of(best)) / temperature
            scores *= tl.exp(tl.where((top_p < 1) | (min_p > 0), 0.0, falls))
            _, token_id = first_best(scores, tl.load(scratch + 3 * num_slices + slices, mask=is_slice, other=NO_ID))
        if PICKS:  # known when compiling, and the next is not  # noqa: SIM102
            if (top_k > 1) & (top_k <= PICKS) & (top_k < vocab_size) & can_choose:
                token_id = _choose_among_best(
                    logits + row * row_stride, vocab_size, noise_keys, row, scratch + 4 * num_slices,
                    num_slices * (SLICE // CHUNK), anchor_of(best), temperature, top_k, top_p, min_p,
                    PICKS, SLICES_PAD * (SLICE // CHUNK), CHUNK,
                )  # fmt: skip
    is_token = can_choose & can_use
    tl.store(token_ids + row, tl.where(is_token, token_id, 0).to(tl.int64))
    tl.store(is_finite + row, can_use)
    tl.store(has_choice + row, can_choose)


@triton.jit
def _choose_among_best(
    logits,
    vocab_size,
    noise_keys,
    row,
    chunk_keys,
    num_chunks,
    row_max,
    temperature,
    top_k,
    top_p,
    min_p,
    PICKS: tl.constexpr,
    CHUNKS_PAD: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The winner among a row's best top_k tokens. Picks go through the row's scratch: a program can pick elements of
    a tensor only by storing them."""
    picks = tl.arange(0, PICKS)
    is_pick = picks < top_k
    picked_chunks = chunk_keys + num_chunks
    picked_keys = picked_chunks + PICKS
    picked_ids = picked_keys + PICKS

    chunks = tl.arange(0, CHUNKS_PAD)
    keys = tl.load(chunk_keys + chunks, mask=chunks < num_chunks, other=LACKING)
    is_best = select_largest(keys, top_k)
    tl.store(picked_chunks + tl.cumsum(is_best.to(tl.int32), axis=0) - 1, chunks, mask=is_best)
    tl.debug_barrier()  # what some threads stored, others load

    # In the order of ids, as chunks were picked in order: among equal logits the earlier is the smaller id.
    first_ids = tl.load(picked_chunks + picks, mask=is_pick, other=0) * CHUNK
    ids = first_ids[:, None] + tl.arange(0, CHUNK)[None, :]
    is_live = is_pick[:, None] & (ids < vocab_size)
    members = tl.load(logits + ids, mask=is_live, other=float("-inf")).to(tl.float32)
    keys = tl.reshape(keys_of(members, is_live), [PICKS * CHUNK])
    ids = tl.reshape(ids, [PICKS * CHUNK])
    is_best = select_largest(keys, top_k)
    places = tl.cumsum(is_best.to(tl.int32), axis=0) - 1
    tl.store(picked_keys + places, keys, mask=is_best)
    tl.store(picked_ids + places, ids, mask=is_best)
    tl.debug_barrier()

    keys = tl.load(picked_keys + picks, mask=is_pick, other=LACKING)
    ids = tl.load(picked_ids + picks, mask=is_pick, other=NO_ID)
    weights = tl.exp((logits_of(tl.where(is_pick, keys, MINUS_INFINITY_KEY)) - row_max) / temperature)
    weights = tl.where(weights < min_p, 0.0, weights)
    if top_p < 1:
        ranks = (keys.to(tl.int64) << 32) - ids
        masses = (weights * FIXED_POINT).to(tl.int64)
        comes_before = ranks[None, :] > ranks[:, None]
        reached = tl.sum(tl.where(comes_before, masses[None, :], 0), axis=1)
        limit = top_p * tl.sum(masses, axis=0).to(tl.float64)
        weights = tl.where(reached.to(tl.float64) < limit, weights, 0.0)
    _, winner = first_best(weights / noise_of(ids, noise_keys, row), ids)
    return winner
