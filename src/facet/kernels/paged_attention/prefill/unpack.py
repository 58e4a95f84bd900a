"""Copies the keys and values of runs from their pages into contiguous memory.

Bound by memory. Keys of shared vectors are made here, once per layer and token, and rounded as the reference does. So
is what quantized numbers stand for: the kernels that follow know nothing of scales.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.paged_attention.cache import KeyRecipe, LayerCache
from facet.kernels.paged_attention.plan import PagedRows
from facet.kernels.paged_attention.prefill.plan import KEYS_PER_COPY, RunPass
from facet.kernels.paged_attention.tiles import widened

_KEYS_PER_PROGRAM = 32


@triton.jit
def _load_numbers(pages, offsets, is_live, scale, HAS_SCALES: tl.constexpr, dtype: tl.constexpr):
    """What is stored, times its scale, rounded once. Zeros where nothing is live, whatever the memory there holds."""
    stored = tl.load(pages + offsets, mask=is_live, other=0.0)
    if HAS_SCALES:
        return (widened(stored, tl.float32) * scale[:, None]).to(dtype)
    return widened(stored, dtype)


# One kernel for all steps, whichever head a slice starts with.
@triton.jit(
    do_not_specialize=["num_keys", "first_head"], do_not_specialize_on_alignment=["block_table", "seats", "copies"]
)
def _unpack_kernel(
    keys,
    values,
    key_scales,
    value_scales,
    unpacked_keys,  # [heads of the slice, num_keys, HEAD_DIM; or only what rotates]
    unpacked_values,  # [heads of the slice, num_keys, HEAD_DIM]
    block_table,
    seats,
    copies,
    key_weight,
    cos_sin,
    table_stride,
    page_stride,
    token_stride,
    scale_page_stride,
    scale_token_stride,
    scale_head_stride,
    first_head,
    num_keys,
    HAS_SCALES: tl.constexpr,
    SHARED: tl.constexpr,  # one vector is stored
    KEEPS_SHARED: tl.constexpr,  # and still dimensions are unpacked once
    NUM_PAIRS: tl.constexpr,
    PAIRS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    KEYS_PER_COPY: tl.constexpr,
    KEYS_PER_PROGRAM: tl.constexpr,
):
    """Some places of one head. Those that no live key is for are filled with zeros: they meet a weight of zero."""
    program, head = tl.program_id(0), tl.program_id(1)
    copy = copies + (program // (KEYS_PER_COPY // KEYS_PER_PROGRAM)) * 4
    inside = (program % (KEYS_PER_COPY // KEYS_PER_PROGRAM)) * KEYS_PER_PROGRAM + tl.arange(0, KEYS_PER_PROGRAM)
    seat = tl.load(seats + tl.load(copy)).to(tl.int64)
    positions = tl.load(copy + 1) + inside
    is_live = (inside >= tl.load(copy + 2)) & (inside < tl.load(copy + 3))
    blocks = tl.load(block_table + seat * table_stride + positions // TOKENS_PER_BLOCK, mask=is_live, other=0)
    blocks = blocks.to(tl.int64)
    sources = blocks * page_stride + (positions % TOKENS_PER_BLOCK) * token_stride + (first_head + head) * HEAD_DIM
    places = head.to(tl.int64) * num_keys + program * KEYS_PER_PROGRAM + tl.arange(0, KEYS_PER_PROGRAM)
    targets = places[:, None] * HEAD_DIM
    dims = tl.arange(0, HEAD_DIM)
    columns = dims
    if KEEPS_SHARED:
        # Still dimensions first, rotating ones last; stretches are long enough to be stored eight numbers at a time.
        half, order = dims // (HEAD_DIM // 2), dims % (HEAD_DIM // 2)
        columns = tl.where(
            order < NUM_PAIRS,
            HEAD_DIM - 2 * NUM_PAIRS + half * NUM_PAIRS + order,
            half * (HEAD_DIM // 2 - NUM_PAIRS) + order - NUM_PAIRS,
        )
        columns = tl.max_contiguous(tl.multiple_of(columns, 8), 8)
    dtype = unpacked_values.dtype.element_ty

    key_scale = sources  # nobody's, without scales
    value_scale = sources
    if HAS_SCALES:
        scale_places = blocks * scale_page_stride + (positions % TOKENS_PER_BLOCK) * scale_token_stride
        scale_places += (first_head + head) * scale_head_stride
        key_scale = tl.load(key_scales + scale_places, mask=is_live, other=0.0)
        value_scale = tl.load(value_scales + scale_places, mask=is_live, other=0.0)

    value = _load_numbers(
        values, sources[:, None] + dims[None, :], is_live[:, None], value_scale, HAS_SCALES, dtype
    )  # fmt: skip
    tl.store(unpacked_values + targets + columns[None, :], value)
    if SHARED:
        KEY_LEN: tl.constexpr = 2 * NUM_PAIRS if KEEPS_SHARED else HEAD_DIM
        if not KEEPS_SHARED:
            weighted = (value.to(tl.float32) * tl.load(key_weight + dims)[None, :]).to(dtype)
            is_still = (dims % (HEAD_DIM // 2)) >= NUM_PAIRS
            tl.store(unpacked_keys + targets + dims[None, :], weighted, mask=is_still[None, :])

        pairs = tl.arange(0, PAIRS_PAD)
        is_pair = pairs < NUM_PAIRS
        live_pairs = is_live[:, None] & is_pair[None, :]
        sides = sources[:, None] + pairs[None, :]
        low = _load_numbers(values, sides, live_pairs, value_scale, HAS_SCALES, dtype)
        high = _load_numbers(values, sides + HEAD_DIM // 2, live_pairs, value_scale, HAS_SCALES, dtype)
        low_weight = tl.load(key_weight + pairs, mask=is_pair, other=0.0)[None, :]
        high_weight = tl.load(key_weight + HEAD_DIM // 2 + pairs, mask=is_pair, other=0.0)[None, :]
        low = (low.to(tl.float32) * low_weight).to(dtype).to(tl.float32)
        high = (high.to(tl.float32) * high_weight).to(dtype).to(tl.float32)
        angles = cos_sin + positions.to(tl.int64)[:, None] * (2 * NUM_PAIRS) + pairs[None, :]
        cos = tl.load(angles, mask=live_pairs, other=0.0).to(tl.float32)
        sin = tl.load(angles + NUM_PAIRS, mask=live_pairs, other=0.0).to(tl.float32)
        rotated_low = (low * cos).to(dtype).to(tl.float32) - (high * sin).to(dtype).to(tl.float32)
        rotated_high = (high * cos).to(dtype).to(tl.float32) + (low * sin).to(dtype).to(tl.float32)
        low_targets = unpacked_keys + places[:, None] * KEY_LEN + pairs[None, :]
        tl.store(low_targets, rotated_low.to(dtype), mask=is_pair[None, :])
        tl.store(low_targets + KEY_LEN // 2, rotated_high.to(dtype), mask=is_pair[None, :])
    else:
        key = _load_numbers(
            keys, sources[:, None] + dims[None, :], is_live[:, None], key_scale, HAS_SCALES, dtype
        )  # fmt: skip
        tl.store(unpacked_keys + targets + dims[None, :], key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Keys and values of some key heads of the runs of a pass, side by side in memory."""

    keys: Tensor  # [heads, keys, head_dim]; of shared vectors [heads, keys, dimensions that rotate]
    values: Tensor  # [heads, keys, head_dim]; of shared vectors the dimensions that rotate come last
    is_shared: bool  # still dimensions are kept once


def make_scratch(
    cache: LayerCache, run_pass: RunPass, dtype: torch.dtype, key_recipe: KeyRecipe | None, *, is_shared: bool
) -> Scratch:
    """Room for one slice of heads. A cache of shared vectors may be unpacked either way, another only separately."""
    assert not is_shared or cache.is_shared, "separate keys and values have nothing to share"
    head_dim = cache.keys.shape[3]
    num_rotated = 2 * key_recipe.cos_sin.shape[-1] if key_recipe is not None else 0

    def room(num_dims: int) -> Tensor:
        return torch.empty(run_pass.heads_per_slice, run_pass.num_keys, num_dims, dtype=dtype, device=cache.keys.device)

    return Scratch(keys=room(num_rotated if is_shared else head_dim), values=room(head_dim), is_shared=is_shared)


def unpack(
    scratch: Scratch,
    cache: LayerCache,
    rows: PagedRows,
    run_pass: RunPass,
    heads: range,
    key_recipe: KeyRecipe | None,
) -> None:
    """Fill scratch with these key heads of the runs."""
    assert not cache.is_shared or key_recipe is not None, "shared vectors need a recipe for their keys"
    stored = cache.keys if cache.values is None else cache.values
    # Read only where vectors are shared; anything else serves otherwise.
    weight, cos_sin = (stored, stored) if key_recipe is None else (key_recipe.weight, key_recipe.cos_sin)
    num_pairs = key_recipe.cos_sin.shape[-1] if cache.is_shared and key_recipe is not None else 1
    key_scales = scratch.keys if cache.key_scales is None else cache.key_scales
    value_scales = key_scales if cache.value_scales is None else cache.value_scales
    _unpack_kernel[(run_pass.num_keys // _KEYS_PER_PROGRAM, len(heads))](
        cache.keys,
        stored,
        key_scales,
        value_scales,
        scratch.keys,
        scratch.values,
        rows.block_table,
        rows.seats,
        run_pass.copies,
        weight,
        cos_sin,
        rows.block_table.stride(0),
        cache.keys.stride(0),
        cache.keys.stride(1),
        *key_scales.stride(),
        heads.start,
        run_pass.num_keys,
        HAS_SCALES=cache.key_scales is not None,
        SHARED=cache.is_shared,
        KEEPS_SHARED=scratch.is_shared,
        NUM_PAIRS=num_pairs,
        PAIRS_PAD=triton.next_power_of_2(num_pairs),
        HEAD_DIM=cache.keys.shape[3],
        TOKENS_PER_BLOCK=rows.tokens_per_block,
        KEYS_PER_COPY=KEYS_PER_COPY,
        KEYS_PER_PROGRAM=_KEYS_PER_PROGRAM,
        num_warps=8,
    )
