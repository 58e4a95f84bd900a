"""The step between projection and attention in one Triton launch. Same meaning as `reference.py`.

A *vector* is one head of one row. Programs are given queries first, then keys, then values: each takes some consecutive
vectors of one sort, held as a low and a high half, so that both sides of a rotated pair are in one thread. Keys and
values are quantized on their way into the pages, as `paged_attention/quantization.py` says.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.paged_attention.cache import HeadShape, LayerCache
from facet.kernels.paged_attention.quantization import SMALLEST_SCALE, largest_stored
from facet.kernels.to_eight_bits import to_stored

# Up to this many vectors, and rows, every one is a program of its own: nothing then waits but for its own few loads.
# Rows count too, so that a step of 300 at the start has met all kernels, also of layers that only store their keys.
_MOST_SINGLE_VECTORS, _MOST_SINGLE_ROWS = 2048, 256
# Beyond it a program takes this many elements, a few wide loads per thread.
_ELEMENTS_PER_PROGRAM = 4096
# Where rows must not depend, bit for bit, on their number, a program always takes this many.
INVARIANT_VECTORS = 4

_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)


@triton.jit
def _load_halves(projected, row_stride, column, rows, heads, is_vector, HEAD_DIM: tl.constexpr):
    dims = tl.arange(0, HEAD_DIM // 2)
    low = projected + (rows * row_stride + column + heads * HEAD_DIM)[:, None] + dims[None, :]
    return (
        tl.load(low, mask=is_vector[:, None], other=0.0),
        tl.load(low + HEAD_DIM // 2, mask=is_vector[:, None], other=0.0),
    )


@triton.jit
def _store_halves(low, high, target, places, is_vector, HEAD_DIM: tl.constexpr):
    pointers = target + places[:, None] + tl.arange(0, HEAD_DIM // 2)[None, :]
    tl.store(pointers, low.to(target.dtype.element_ty), mask=is_vector[:, None])
    tl.store(pointers + HEAD_DIM // 2, high.to(target.dtype.element_ty), mask=is_vector[:, None])


@triton.jit
def _store_in_pages(
    low, high, target, places, scales, scale_places, is_vector,
    HAS_SCALES: tl.constexpr, LIMIT: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Stores vectors, quantized where the pages are of another type than the activations."""
    dtype: tl.constexpr = target.dtype.element_ty
    if dtype != low.dtype:
        wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
        if HAS_SCALES:
            greatest = tl.maximum(tl.max(tl.abs(wide_low), axis=1), tl.max(tl.abs(wide_high), axis=1))
            # Zero, or NaN where NaN or infinity is: a maximum would pass NaN by.
            loud = tl.sum(wide_low - wide_low, axis=1) + tl.sum(wide_high - wide_high, axis=1)
            scale = tl.div_rn(greatest, tl.full(greatest.shape, LIMIT, tl.float32)) + loud
            scale = tl.where(scale < _SMALLEST_SCALE, 1.0, scale)
            tl.store(scales + scale_places, scale, mask=is_vector)
            divisors = tl.broadcast_to(scale[:, None], wide_low.shape)
            wide_low, wide_high = tl.div_rn(wide_low, divisors), tl.div_rn(wide_high, divisors)
        low, high = to_stored(wide_low, dtype, -LIMIT, LIMIT), to_stored(wide_high, dtype, -LIMIT, LIMIT)
    _store_halves(low, high, target, places, is_vector, HEAD_DIM)


@triton.jit
def _normed(low, high, low_weight, high_weight, eps, HAS_WEIGHT: tl.constexpr, HEAD_DIM: tl.constexpr):
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    squares = tl.sum(wide_low * wide_low, axis=1) + tl.sum(wide_high * wide_high, axis=1)
    factors = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
    wide_low, wide_high = wide_low * factors, wide_high * factors
    if HAS_WEIGHT:
        wide_low *= low_weight[None, :]
        wide_high *= high_weight[None, :]
    return wide_low.to(low.dtype), wide_high.to(low.dtype)


@triton.jit
def _product(a, b):
    """a * b, rounded as a product of two tensors of their dtype is."""
    return (a.to(tl.float32) * b.to(tl.float32)).to(a.dtype).to(tl.float32)


@triton.jit
def _rotated(low, high, cos_sin, rows, is_vector, NUM_PAIRS: tl.constexpr, HEAD_DIM: tl.constexpr):
    dims = tl.arange(0, HEAD_DIM // 2)
    turns = (dims < NUM_PAIRS)[None, :]
    angles = cos_sin + rows[:, None] * (2 * NUM_PAIRS) + dims[None, :]
    cos = tl.load(angles, mask=is_vector[:, None] & turns, other=0.0)
    sin = tl.load(angles + NUM_PAIRS, mask=is_vector[:, None] & turns, other=0.0)
    new_low = (_product(low, cos) - _product(high, sin)).to(low.dtype)
    new_high = (_product(high, cos) + _product(low, sin)).to(low.dtype)
    return tl.where(turns, new_low, low), tl.where(turns, new_high, high)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["write_blocks", "write_slots"])
def _prepare_heads_kernel(
    projected,
    queries,
    keys,
    values,
    query_weight,
    key_weight,
    cos_sin,
    write_blocks,
    write_slots,
    key_scales,
    value_scales,
    eps,
    num_rows,
    row_stride,
    page_stride,
    token_stride,
    scale_page_stride,
    scale_token_stride,
    scale_head_stride,
    value_column,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    STORES_KEYS: tl.constexpr,
    STORES_VALUES: tl.constexpr,
    VALUES_ARE_NORMED: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    LIMIT: tl.constexpr,
    VECTORS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    program = tl.program_id(0)
    num_query_programs = tl.cdiv(num_rows * NUM_HEADS, VECTORS)
    # Programs of values load the keys' weight for nothing.
    weight = query_weight if program < num_query_programs else key_weight
    dims = tl.arange(0, HEAD_DIM // 2)
    low_weight, high_weight = tl.load(weight + dims), tl.load(weight + HEAD_DIM // 2 + dims)
    start_after_previous(IS_DEPENDENT)
    if program < num_query_programs:
        vectors = program * VECTORS + tl.arange(0, VECTORS)
        is_vector = vectors < num_rows * NUM_HEADS
        # Without queries nothing comes here, but it is compiled.
        DIVISOR: tl.constexpr = max(NUM_HEADS, 1)
        rows = (vectors // DIVISOR).to(tl.int64)
        low, high = _load_halves(projected, row_stride, 0, rows, vectors % DIVISOR, is_vector, HEAD_DIM)
        low, high = _normed(low, high, low_weight, high_weight, eps, True, HEAD_DIM)
        low, high = _rotated(low, high, cos_sin, rows, is_vector, NUM_PAIRS, HEAD_DIM)
        _store_halves(low, high, queries, vectors.to(tl.int64) * HEAD_DIM, is_vector, HEAD_DIM)
    elif STORES_KEYS or STORES_VALUES:
        index = program - num_query_programs
        num_kv_programs = tl.cdiv(num_rows * NUM_KV_HEADS, VECTORS)
        vectors = (index % num_kv_programs) * VECTORS + tl.arange(0, VECTORS)
        is_vector = vectors < num_rows * NUM_KV_HEADS
        rows = (vectors // NUM_KV_HEADS).to(tl.int64)
        heads = vectors % NUM_KV_HEADS
        blocks = tl.load(write_blocks + rows, mask=is_vector, other=0)
        slots = tl.load(write_slots + rows, mask=is_vector, other=0)
        places = blocks * page_stride + slots * token_stride + heads * HEAD_DIM
        scale_places = blocks * scale_page_stride + slots * scale_token_stride + heads * scale_head_stride
        if STORES_KEYS and index < num_kv_programs:
            low, high = _load_halves(
                projected, row_stride, NUM_HEADS * HEAD_DIM, rows, heads, is_vector, HEAD_DIM
            )  # fmt: skip
            low, high = _normed(low, high, low_weight, high_weight, eps, True, HEAD_DIM)
            low, high = _rotated(low, high, cos_sin, rows, is_vector, NUM_PAIRS, HEAD_DIM)
            _store_in_pages(
                low, high, keys, places, key_scales, scale_places, is_vector, HAS_SCALES, LIMIT, HEAD_DIM
            )  # fmt: skip
        else:
            low, high = _load_halves(projected, row_stride, value_column, rows, heads, is_vector, HEAD_DIM)
            if VALUES_ARE_NORMED:
                low, high = _normed(low, high, low_weight, high_weight, eps, False, HEAD_DIM)
            _store_in_pages(
                low, high, values, places, value_scales, scale_places, is_vector, HAS_SCALES, LIMIT, HEAD_DIM
            )  # fmt: skip


def prepare_heads(
    projected: Tensor,
    heads: HeadShape,
    *,
    query_weight: Tensor,
    key_weight: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    cache: LayerCache | None,
    write_blocks: Tensor,
    write_slots: Tensor,
    values_are_normed: bool,
    vectors_per_program: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """See the package. `vectors_per_program` and `num_warps` are for measuring; None: chosen by the number of rows."""
    num_rows, width = projected.shape
    query_width, kv_width = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
    stores_keys = cache is not None and cache.values is not None
    assert projected.stride(1) == 1, "the heads of a row lie side by side"
    assert cos_sin.is_contiguous(), "the angles of a row lie side by side"
    assert not stores_keys or key_weight is not None, "keys are stored normalised, which takes a weight"
    assert cache is not None or width == query_width, "a layer without a cache projects queries alone"
    target = queries = torch.empty(
        num_rows, heads.num_heads, heads.head_dim, dtype=projected.dtype, device=projected.device
    )
    if cache is not None:
        target = cache.keys if cache.values is None else cache.values
        assert target.stride() == cache.keys.stride(), "keys and values are laid out alike"
    key_scales = None if cache is None else cache.key_scales
    # One stored vector has one scale. Without scales, anything serves: they are not touched.
    value_scales = cache.value_scales if cache is not None and stores_keys else key_scales
    scale_strides = (0, 0, 0) if key_scales is None else key_scales.stride()
    assert value_scales is None or value_scales.stride() == scale_strides, "scales are laid out alike"
    num_sorts = (cache is not None) + stores_keys
    if vectors_per_program is None:
        num_vectors = num_rows * (heads.num_heads + num_sorts * heads.num_kv_heads)
        few = num_vectors <= _MOST_SINGLE_VECTORS and num_rows <= _MOST_SINGLE_ROWS
        vectors_per_program = 1 if few else max(1, _ELEMENTS_PER_PROGRAM // heads.head_dim)
    num_programs = triton.cdiv(num_rows * heads.num_heads, vectors_per_program)
    num_programs += num_sorts * triton.cdiv(num_rows * heads.num_kv_heads, vectors_per_program)
    _prepare_heads_kernel[(num_programs,)](
        projected,
        queries,
        queries if cache is None else cache.keys,
        target,
        query_weight,
        query_weight if key_weight is None else key_weight,
        cos_sin,
        write_blocks,
        write_slots,
        query_weight if key_scales is None else key_scales,
        query_weight if value_scales is None else value_scales,
        eps,
        num_rows,
        projected.stride(0),
        target.stride(0),
        target.stride(1),
        *scale_strides,
        query_width + (kv_width if width > query_width + kv_width else 0),
        NUM_HEADS=heads.num_heads,
        NUM_KV_HEADS=heads.num_kv_heads,
        HEAD_DIM=heads.head_dim,
        NUM_PAIRS=cos_sin.shape[-1],
        STORES_KEYS=stores_keys,
        STORES_VALUES=cache is not None,
        VALUES_ARE_NORMED=values_are_normed,
        HAS_SCALES=key_scales is not None,
        LIMIT=largest_stored(target.dtype),
        VECTORS=vectors_per_program,
        num_warps=num_warps or min(4, max(1, vectors_per_program * heads.head_dim // 512)),
        # A product and a sum in one rounding would differ from the definition.
        enable_fp_fusion=False,
        **launch_options(projected.device),
    )
    return queries
